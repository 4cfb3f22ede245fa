# Written anew for each run by pulley-agent.
require 'json'
require 'puppet/indirector/facts/facter'

# Facter's facts. With them, $trusted receives the extensions that the operator supplied. Puppet reads $trusted from its
# context. A fact or a parameter of the node cannot change it.
class Puppet::Node::Facts::Pulley < Puppet::Node::Facts::Facter
  desc "Facter's facts, with the trusted extensions of Pulley's environment file."

  def find(request)
    load File.join(Puppet[:libdir], 'pulley', 'types.rb') unless defined?(Pulley::SETTINGS)
    facts = super
    supplied = JSON.parse(File.read(File.join(Puppet[:confdir], 'trusted.json')))['trusted']
    trusted = Puppet::Context::TrustedInformation.new(
      supplied['authenticated'], supplied['certname'], self.class.reporting(supplied['extensions'])
    )
    Puppet.push_context({ trusted_information: trusted }, 'trusted extensions of Pulley')
    facts
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
