require 'puppet/application'
require 'puppet/face'
require 'puppet/parser'
require 'json'

# Judges the files of a control repository as Puppet does when it reads them. It loads no code of the repository.
class Puppet::Application::Pulley_validate < Puppet::Application
  run_mode :user
  environment_mode :not_required

  def setup
    Puppet::Util::Log.newdestination(:console) # not syslog
  end

  def run_command
    job = JSON.parse(File.read(command_line.args.last))
    Puppet[:strict] = :warning
    Puppet[:strict_variables] = false
    parse(job['manifests']) unless job['manifests'].empty?
    File.write(job['answer'], JSON.generate(read(job)))
  end

  private

  def parse(files)
    Puppet::Face[:parser, :current].validate(*files).each_value { |error| Puppet.log_exception(error) }
  rescue StandardError => e
    Puppet.log_exception(e)
  end

  def read(job)
    env = Puppet.lookup(:current_environment)
    @found = []
    Puppet.override(loaders: Puppet::Pops::Loaders.new(env)) do
      @scope = Puppet::Parser::Compiler.new(Puppet::Node.new('validate', environment: env)).topscope
      job['hiera'].each { |file| guard(file) { hiera(file) } }
      job['data'].each { |file| guard(file) { data(file) } }
    end
    @found
  end

  def guard(file)
    @file = file['file']
    @path = file['path']
    yield
  rescue StandardError, SystemStackError => e
    add('internal', "#{e.class}: #{e.message}")
  end

  def add(rule, problem, line = 0, column = 0)
    problem = problem.scrub.gsub("'#{@path}'", 'it').gsub("(#{@path}): ", '').gsub(@path, @file).sub(/ \(file: [^)]*\)\z/, '')
    @found << { file: @file, rule: rule, problem: problem.lines.first.to_s.chomp, line: line, column: column }
  end

  # hiera.yaml of the environment, or of a module
  def hiera(file)
    owner = file['module'] ? Puppet::Pops::Lookup::ModuleDataProvider.new(file['module']) : Puppet::Pops::Lookup::EnvironmentDataProvider.new
    invocation = Puppet::Pops::Lookup::Invocation.new(@scope)
    config = Puppet::Pops::Lookup::HieraConfig.create(invocation, Pathname(@path), owner)
    owner.instance_variable_set(:@config, config)
    return if config.version == 3

    providers = config.configured_data_providers(invocation, owner)
    providers += config.configured_data_providers(invocation, owner, true) if config.has_default_hierarchy?
    providers.each { |p| function(p, invocation) }
  rescue Puppet::Util::Yaml::YamlLoadError => e
    syntax('hiera_config', e)
  rescue StandardError => e
    problem = e.message.sub(/\AThe Lookup Configuration at '[^']*' (?:has wrong type, )?/, '')
    add('hiera_config', problem, line(problem))
  end

  # line of the level or the key that a problem names
  def line(problem)
    nodes = Psych.parse(File.read(@path, encoding: 'utf-8')).each.to_a
    if (at = problem.match(/entry '(\w+)' index (\d+)/))
      pairs = nodes.grep(Psych::Nodes::Mapping).flat_map { |m| m.children.each_slice(2).to_a }
      _, levels = pairs.find { |key, _| key.is_a?(Psych::Nodes::Scalar) && key.value == at[1] }
      level = levels.children[at[2].to_i]
    elsif (at = problem.match(/(?:hierarchy|level|key) '([^']*)'/))
      level = nodes.find { |n| n.is_a?(Psych::Nodes::Scalar) && n.value.sub(/\A:/, '') == at[1] }
    end
    level ? level.start_line + 1 : 0
  rescue StandardError
    0
  end

  FUNCTIONS = %w[yaml_data json_data hocon_data eyaml_lookup_key].freeze

  # whether Puppet can call the function of a level
  def function(provider, invocation)
    name = provider.function_name
    # Puppet calls no function for files that do not exist; those with an interpolation may, on other nodes
    location, = provider.locations.select { |l| l.nil? || l.exist? || l.original_location.to_s.include?('%{') }
    return if location.nil? && !provider.locations.include?(nil)

    unless FUNCTIONS.include?(name)
      add('function', name)
      return
    end
    return if name == 'hocon_data' && !Puppet.features.hocon?

    options = provider.options(location)
    function = provider.send(:function, invocation)
    args = provider.is_a?(Puppet::Pops::Lookup::DataHashFunctionProvider) ? 2 : 3
    called = (options.key?('path') || name != 'eyaml_lookup_key') && function.class.dispatcher.dispatchers.any? do |d|
      types = d.type.param_types.types
      !d.argument_mismatch_handler? && types.size == args && types[args - 2].instance?(options)
    end
    add('hiera_config', "#{provider.full_name} of level '#{provider.instance_variable_get(:@name)}' does not accept the options [#{options.keys.join(', ')}]",
        line("level '#{provider.instance_variable_get(:@name)}'")) unless called
  end

  # a file that yaml_data, json_data or eyaml_lookup_key read
  def data(file)
    text = Puppet::FileSystem.read(@path, encoding: 'utf-8')
    hash = file['json'] ? Puppet::Util::Json.load(text) : Puppet::Util::Yaml.safe_load(text, [Symbol], @path)
    unless hash.is_a?(Hash)
      add(file['json'] ? 'data_syntax' : 'data_mapping', hash == false ? 'it is empty' : "its type is #{hash.class}")
      return
    end
    @places = file['json'] ? {} : places(text)
    hash = Puppet::Pops::Lookup::HieraConfig.symkeys_to_string(hash) unless file['json']
    hash.each_pair { |key, value| entry(key, value, file['module']) }
  rescue Puppet::Util::Yaml::YamlLoadError, Puppet::Util::Json::ParseError => e
    syntax('data_syntax', e, text)
  end

  # lines of the keys
  def places(text)
    root = Psych.parse(text, filename: @path)&.children&.first
    found = {}
    return found unless root.is_a?(Psych::Nodes::Mapping)

    root.children.each_slice(2) { |key, _| found[key.value.sub(/\A:/, '')] = [key.start_line + 1, key.start_column + 1] if key.is_a?(Psych::Nodes::Scalar) }
    found
  end

  def entry(key, value, of_module)
    at = @places[key.to_s] || [0, 0]
    if !key.is_a?(String) # no lookup asks for it
      add('data_syntax', "the key #{key} of a module's data is not text", *at) if of_module
    elsif !Puppet::Pops::Lookup::DataProvider.value_type.instance?(value)
      add(key == 'lookup_options' ? 'lookup_options' : 'lookup_fails', "#{key}: its type is #{Puppet::Pops::Types::TypeCalculator.singleton.infer(value)}", *at)
    elsif key == 'lookup_options'
      lookup_options(value, of_module, at)
    end
  end

  def lookup_options(all, of_module, at)
    return if all.nil?

    adapter = Puppet::Pops::Lookup::LookupAdapter.new(@scope.compiler)
    begin
      adapter.send(:validate_lookup_options, all, of_module)
      adapter.send(:compile_patterns, all)
    rescue StandardError => e
      return add('lookup_options', e.is_a?(NoMethodError) ? 'a key is not text' : e.message, *at)
    end
    all.each_pair do |key, options|
      one(options)
    rescue StandardError => e
      problem = e.is_a?(NoMethodError) || e.is_a?(TypeError) ? 'its options are not a mapping' : e.message
      add('lookup_fails', "lookup_options of #{key}: #{problem}", *at)
    end
  end

  # the options of one key, as LookupAdapter reads them
  def one(options)
    return if options.nil?

    Puppet::Pops::MergeStrategy.strategy(options['merge'])
    convert = options['convert_to']
    return if convert.nil?

    type = convert.is_a?(Array) ? convert.first : convert
    raise ArgumentError, 'convert_to names no type' if type.nil?

    type = Puppet::Pops::Types::TypeParser.singleton.parse(type) if type.is_a?(String)
    return if type.is_a?(Puppet::Pops::Types::PTypeReferenceType) && type.type_string.include?('::') # perhaps of a module

    type.new_function
  end

  def syntax(rule, error, text = nil)
    cause = error.respond_to?(:original) && error.original
    if cause.is_a?(Psych::SyntaxError)
      add(rule, [cause.problem, cause.context].compact.join(' '), cause.line, cause.column)
    else
      add(rule, error.message.scrub.sub(/\A\d+: /, ''), *(text ? refused(text) : []))
    end
  end

  # place of the first value of a class that Puppet does not load
  def refused(text)
    loader = Psych::ClassLoader::Restricted.new(%w[Symbol], [])
    visitor = Psych::Visitors::ToRuby.new(Psych::ScalarScanner.new(loader), loader)
    Psych.parse(text).each do |node|
      next unless node.is_a?(Psych::Nodes::Scalar) || node.respond_to?(:tag) && node.tag

      begin
        visitor.accept(node)
      rescue StandardError
        return [node.start_line + 1, node.start_column + 1]
      end
    end
    []
  rescue StandardError
    []
  end
end
