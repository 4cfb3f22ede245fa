# Returns whether cron starts something at a schedule: five fields with values in their ranges, or a name that cron has.
#
# @api private
function pulley::valid_schedule(String $schedule) >> Boolean {
  $step   = '(/(0?[1-9]|[1-9][0-9]))?'
  $fields = [
    '[0-5]?[0-9]',                                                        # minute
    '([01]?[0-9]|2[0-3])',                                                # hour
    '(0?[1-9]|[12][0-9]|3[01])',                                          # day of the month
    '(0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)',   # month
    '(0?[0-7]|sun|mon|tue|wed|thu|fri|sat)',                              # day of the week
  ].map |$value| {
    $item = "(\\*${step}|${value}(-${value}${step})?)"
    "${item}(,${item})*"
  }
  $names = '@(yearly|annually|monthly|weekly|daily|midnight|hourly)'

  $schedule =~ "\\A(${names}|(?i)${join($fields, ' +')})\\z"
}
