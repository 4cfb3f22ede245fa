# Written anew for each run by pulley-agent.
require 'json'
require 'puppet/indirector/facts/facter'
require 'puppet/trusted_external'

# Facter's facts, and the fact `pulley` whatever Facter has in its place. With them, $trusted receives the extensions that the operator supplied. Puppet reads $trusted from its
# context. A fact or a parameter of the node cannot change it. The agent publishes the facts that find leaves in facts.json.
class Puppet::Node::Facts::Pulley < Puppet::Node::Facts::Facter
  desc "Facter's facts, with the trusted extensions of Pulley's environment file."

  def find(request)
    load File.join(Puppet[:libdir], 'pulley', 'types.rb') unless defined?(Pulley::SETTINGS)
    facts = super
    own(facts.values)
    supplied = JSON.parse(File.read(File.join(Puppet[:confdir], 'trusted.json')))['trusted']
    supplied['external'] = Puppet::TrustedExternal.retrieve(supplied['certname']) || {} # as for each catalog; an error ends the run
    trusted = Puppet::Context::TrustedInformation.new(
      supplied['authenticated'], supplied['certname'], self.class.reporting(supplied['extensions']), supplied['external']
    )
    Puppet.push_context({ trusted_information: trusted }, 'trusted extensions of Pulley')
    keep(facts, supplied)
    facts
  end

  # The code of a release and its Hiera levels decide by the fact of Pulley. No file of the machine and no module replaces or removes it.
  def own(values)
    pulley = JSON.parse(File.read(File.join(Puppet[:pluginfactdest], 'pulley.json')))['pulley']
    Puppet.warning("Facter has another fact 'pulley' than Pulley, or none: it is ignored. Remove it from facts.d, facter.conf or the module") if values['pulley'] != pulley
    values['pulley'] = pulley
    blocked = defined?(::Facter::ConfigReader) && ::Facter::ConfigReader.conf && ::Facter::ConfigReader.block_list
    Puppet.warning("facter.conf of this machine removes facts: #{blocked.join(', ')}") unless [nil, false, []].include?(blocked)
  end

  LARGEST = 64 * 1024
  ALL = 4 * 1024 * 1024

  # Writes the facts for the agent. A fact that is too large, or is no JSON, is only named. No error ends the run.
  def keep(facts, trusted)
    kept = []
    cut = []
    size = 0
    facts.values.each do |name, value|
      text = fragment(value)
      size += name.to_s.bytesize + text.bytesize + 4 if text
      if text.nil? || text.bytesize > LARGEST || size > ALL
        cut << name.to_s.scrub('?')[0, 200] if cut.size < 1000
      else
        kept << "#{JSON.generate(name.to_s.scrub('?'))}:#{text}"
      end
    end
    path = File.join(File.dirname(Puppet[:confdir]), 'facts.json')
    File.write(path, "{\"facts\":{#{kept.join(',')}},\"trusted\":#{JSON.generate(trusted)},\"cut\":#{JSON.generate(cut)}}", perm: 0o600)
  rescue StandardError => e
    Puppet.warning("Pulley publishes no facts of this run: #{e.message}")
  end

  def fragment(value)
    JSON.generate(value)
  rescue StandardError
    nil
  end

  # Returns the extensions with a warning for each one that code reads and nobody supplied.
  def self.reporting(extensions)
    warned = {}
    look = lambda do |name|
      next if warned[name] || extensions.keys.include?(name)

      warned[name] = true
      Puppet.warning("trusted extension '#{name}' is read, and the environment file of the release does not supply it")
    end
    %i[[] include? key? has_key? dig fetch].each do |read|
      extensions.define_singleton_method(read) do |name, *more, &block|
        look.call(name)
        super(name, *more, &block)
      end
    end
    extensions
  end
end
