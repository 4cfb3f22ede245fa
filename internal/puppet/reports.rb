# Written anew for each run by pulley-agent.
require 'json'
require 'puppet/application'
require 'puppet/reports'
require 'puppet/transaction/report'

# Hands the reports of ended runs to Puppet's report processors, the oldest first. It prints one line of JSON for each
# report and processor: pulley-report {"run":…,"processor":…,"problem":…}. A processor that fails for two reports is not
# tried with the others: its server may hang.
class Puppet::Application::PulleyReport < Puppet::Application
  run_mode :agent

  def setup; end # no log on the console

  def main
    $stdout.sync = true
    failures = Hash.new(0)
    JSON.parse(File.read(command_line.args.first)).each do |run|
      run['processors'].each do |name|
        next if failures[name] > 1

        problem = process(run['report'], name)
        failures[name] += 1 if problem
        puts "pulley-report #{JSON.generate('run' => run['run'], 'processor' => name, 'problem' => problem.to_s.scrub)}"
      end
    end
    exit(0)
  end

  private

  # Returns the problem, or nil. A processor may raise, or only log an error.
  def process(path, name)
    report = Puppet::Transaction::Report.convert_from(:yaml, File.read(path, encoding: 'UTF-8'))
    processor = Puppet::Reports.report(name)
    return 'Puppet finds no report processor of this name' unless processor

    log = Puppet::Transaction::Report.new
    Puppet::Util::Log.with_destination(log) { report.extend(processor).process }
    log.logs.find { |line| %i[err alert emerg crit].include?(line.level) }&.message
  rescue StandardError, ScriptError => e
    "#{e.class}: #{e.message}"
  end
end
