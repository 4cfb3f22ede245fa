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
    @found = []
    parse(job['manifests'].to_h { |file| [file['path'], file] }) unless job['manifests'].empty?
    File.write(job['answer'], JSON.generate(read(job)))
  end

  private

  def parse(files)
    judge = self
    # Puppet takes the place of a definition from the modulepath, which is not set here: modules could bring code.
    checker = Puppet::Pops::Validation::Checker4_0
    checker.define_method(:namespace_for_file) { |path| files.dig(path, 'namespace') || checker::NO_NAMESPACE }
    Puppet::Pops::Parser::EvaluatingParser.singleton.define_singleton_method(:parse_file) do |path|
      super(path).tap { |model| judge.send(:guard, files[path]) { judge.send(:manifest, model, files[path]['site']) } if files[path] && files[path]['names'] }
    end
    Puppet::Face[:parser, :current].validate(*files.keys).each_value { |error| Puppet.log_exception(error) }
  rescue StandardError => e
    Puppet.log_exception(e)
  end

  def read(job)
    env = Puppet.lookup(:current_environment)
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
    note(rule, problem.lines.first.to_s.chomp, line, column)
  end

  def note(rule, detail, line = 0, column = 0)
    @found << { file: @file, rule: rule, problem: detail, line: line, column: column }
  end

  def note_once(rule, name, expression)
    note(rule, name, expression.line, expression.pos) unless @noted[[rule, name]]
    @noted[[rule, name]] = true
  end

  # functions and resource types that a manifest uses and Puppet itself does not have, each once, and of a site manifest what it declares
  def manifest(model, site)
    @noted = {}
    @kept = Hash.new([].freeze)
    expression(model, site)
  end

  # @kept has the keys whose values each variable of the scope has
  def expression(o, site)
    outer = @kept
    case o
    when Ast::CallNamedFunctionExpression then call(o, o.functor_expr)
    when Ast::CallMethodExpression then call(o, o.functor_expr.right_expr) unless o.arguments.empty? && o.lambda.nil? # perhaps an attribute, as in $uri.host
    when Ast::ResourceExpression then type(o, o.type_name)
    when Ast::ResourceDefaultsExpression then type(o, o.type_ref)
    when Ast::CollectExpression then type(o, o.type_expr)
    end
    site(o) if site
    o._pcore_contents { |inner| expression(inner, site) }
    @kept = outer if SCOPES.any? { |scope| o.is_a?(scope) }
  end

  Ast = Puppet::Pops::Model

  def call(expression, functor)
    return unless functor.is_a?(Ast::QualifiedName)

    @functions ||= Hash.new do |known, name|
      known[name] = name != 'import' && # which only fails
                    (Puppet.lookup(:loaders).puppet_system_loader.load(:function, name) || Puppet::Parser::Functions.function(name)) ? true : false
    end
    name = functor.value.sub(/\A::/, '')
    note_once('call', name, expression) unless @functions[name]
  end

  def type(expression, name)
    return unless name.is_a?(Ast::QualifiedName) || name.is_a?(Ast::QualifiedReference)

    @types ||= Hash.new { |known, type| known[type] = %w[class resource].include?(type) || Puppet::Type.type(type.to_sym) ? true : false }
    name = name.value.sub(/\A::/, '')
    note_once('type', name, expression) unless @types[name]
  end

  SCOPES = [Ast::CallExpression, Ast::NamedDefinition, Ast::NodeDefinition].freeze
  LOOKUPS = %w[lookup hiera hiera_array hiera_hash].freeze
  INCLUSIONS = %w[include contain require hiera_include].freeze
  ITERATIONS = %w[each reverse_each map filter with then].freeze

  # what a site manifest declares, and the keys of data whose values it includes
  def site(o)
    @kept = @kept.dup if SCOPES.any? { |scope| o.is_a?(scope) }
    case o
    when Ast::NamedDefinition
      note('declared', o.name, o.line, o.pos) unless o.is_a?(Ast::FunctionDefinition)
      ['name', 'title', *o.parameters.map(&:name)].each { |name| @kept.delete(name) }
    when Ast::NodeDefinition
      o.host_matches.each do |m|
        name = m.is_a?(Ast::LiteralRegularExpression) ? Puppet::Resource::Type.new(:node, m.value).name : m.is_a?(Ast::LiteralDefault) ? 'default' : m.value.to_s.downcase
        note('declared', "node #{name}", m.line, m.pos)
      end
    when Ast::AssignmentExpression
      @kept[o.left_expr.expr.value] = keys(o.right_expr) if o.left_expr.is_a?(Ast::VariableExpression)
    when Ast::CallExpression
      name, args = function_of(o)
      found = args.flat_map { |a| keys(a) }
      found << key(args.first) if name == 'hiera_include'
      found.compact.uniq.each { |k| note('included', k) } if INCLUSIONS.include?(name)
      found = [] unless ITERATIONS.include?(name)
      o.lambda&.parameters&.each { |p| @kept[p.name] = found }
    end
  end

  # name and arguments of a call
  def function_of(call)
    method = call.is_a?(Ast::CallMethodExpression)
    name = method ? call.functor_expr.right_expr : call.functor_expr
    [name.is_a?(Ast::QualifiedName) ? name.value.sub(/\A::/, '') : nil, (method ? [call.functor_expr.left_expr] : []) + call.arguments]
  end

  # the keys whose values, or the elements of them, an expression has, unchanged
  def keys(expression)
    case expression
    when Ast::VariableExpression then expression.expr.is_a?(Ast::QualifiedName) ? @kept[expression.expr.value.sub(/\A::/, '')] : []
    when Ast::ParenthesizedExpression then keys(expression.expr)
    when Ast::LiteralList then expression.values.flat_map { |v| keys(v) }
    when Ast::ArithmeticExpression then expression.operator == '+' ? keys(expression.left_expr) + keys(expression.right_expr) : []
    when Ast::CallExpression
      name, args = function_of(expression)
      if LOOKUPS.include?(name) then [key(args.first)].compact
      elsif %w[unique flatten].include?(name) then keys(args.first)
      else []
      end
    else []
    end
  end

  # the key that a lookup asks for: with * for an interpolation and what follows it
  def key(argument)
    case argument
    when Ast::LiteralString then argument.value
    when Ast::ConcatenatedString then "#{argument.segments.first.value}*" if argument.segments.first.is_a?(Ast::LiteralString)
    when Ast::LiteralHash then key(argument.entries.find { |e| e.key.respond_to?(:value) && e.key.value == 'name' }&.value)
    end
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
      empty = hash == false && !file['json'] # Puppet warns of it, and goes on
      add(file['json'] ? 'data_syntax' : 'data_mapping', "its type is #{hash.class}") unless empty
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
