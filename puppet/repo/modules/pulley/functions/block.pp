# Returns the content of a file of this machine with one marked block, for a file resource. The block is at the end. All
# other lines are kept. A block without its first or its last line fails: Puppet must not remove the lines of somebody else.
#
# @param path     the file; a missing one counts as empty
# @param name     names the block in its first and its last line
# @param content  the lines of the block
function pulley::block(Pattern[/\A\//] $path, Pattern[/\A[a-z][a-z0-9 -]*\z/] $name, String $content) >> String {
  $others = regsubst(file($path, '/dev/null'), "^# BEGIN ${name}: managed by Puppet\n.*?^# END ${name}\n", '', 'M')
  if $others =~ "^# (BEGIN|END) ${name}(:|$)" {
    fail("${path} has an incomplete block \"${name}\": delete the line that begins with # BEGIN ${name} or # END ${name}")
  }
  $separated = $others ? {
    /[^\n]\z/ => "${others}\n",
    default   => $others,
  }
  "${separated}# BEGIN ${name}: managed by Puppet\n${content}# END ${name}\n"
}
