require 'puppet/application'
require 'json'

# Reads generated files as runs of Puppet do: by lookups in directory environments, and as settings.
class Puppet::Application::Pulley_oracle < Puppet::Application
  run_mode :user
  environment_mode :not_required

  def setup
    Puppet::Util::Log.level = :emerg
  end

  def run_command
    job = JSON.parse(File.read(command_line.args.last))
    Puppet[:strict_variables] = false
    File.write(job['answer'], JSON.generate(job['environments'].map { |e| e.start_with?('conf/') ? settings(File.join(job['dir'], e)) : answer(File.basename(e), File.join(job['dir'], e)) }))
  rescue StandardError => e
    warn e.full_message
    raise
  end

  private

  def answer(name, dir)
    env = Puppet.lookup(:environments).get(name)
    compiler = Puppet::Parser::Compiler.new(Puppet::Node.new('web1', environment: env))
    failed = []
    unvalued = false
    Puppet.override(loaders: compiler.loaders, current_environment: env) do
      whole = problem(compiler, 'no_such_key')
      return { whole: whole } if whole

      keys, unvalued = keys(dir)
      keys.each { |k| (e = problem(compiler, k)) && failed << "#{k}: #{e}" }
    end
    { failed: failed, unvalued: unvalued }
  ensure
    Puppet.lookup(:environments).clear(name)
  end

  def problem(compiler, key)
    invocation = Puppet::Pops::Lookup::Invocation.new(compiler.topscope)
    Puppet::Pops::Lookup.lookup([key], nil, nil, true, nil, invocation)
    nil
  rescue StandardError, SystemStackError => e
    "#{e.class}: #{e.message}"
  end

  # the keys of the data, and those with options; and whether some are not looked up: those with quotes, and options of a key without a value
  def keys(dir)
    file, more = Dir.glob(File.join(dir, 'data', '*'))
    return [[], false] if more # it is about hiera.yaml

    text = File.read(file, encoding: 'utf-8')
    hash = file.end_with?('.json') ? JSON.parse(text) : Puppet::Util::Yaml.safe_load(text, [Symbol])
    return [[], false] unless hash.is_a?(Hash)

    options = hash['lookup_options'] || hash[:lookup_options]
    optional = options.is_a?(Hash) ? options.keys.map(&:to_s) : []
    all = hash.keys.map(&:to_s) + optional
    keys = (all.select(&:valid_encoding?) + %w[a ax b x z mod::x]).uniq.reject { |k| k == 'lookup_options' || k.empty? || k =~ /['"]|::.*::.*:|\A\^/ }.map { |k| k.include?('.') ? "'#{k}'" : k }
    [keys, all.any? { |k| !k.valid_encoding? || k =~ /['"]/ } || optional.any? { |k| !k.start_with?('^') && !hash.keys.map(&:to_s).include?(k) }]
  end

  def settings(dir)
    all = Puppet::Environments::Cached.new(Puppet::Environments::Directories.new(Pathname(dir).parent, []))
    Puppet.override(environments: all) { all.get(File.basename(dir)) }
    conf = Puppet::Settings::EnvironmentConf.load_from(dir, [])
    { settings: %i[modulepath manifest config_version].to_h { |s| [s, conf.raw_setting(s)] }.compact.transform_values(&:to_s) }
  rescue StandardError, SystemStackError => e
    { whole: "#{e.class}: #{e.message}" }
  end
end
