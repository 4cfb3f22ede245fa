# Written anew for each run by pulley-agent.
require 'net/http'
require 'puppet/indirector/facts/facter'

# Facter's facts. routes.yaml names this terminus: Puppet loads it after its settings, and before its first connection. Without
# the file, Puppet ends with an error.
class Puppet::Node::Facts::PulleyAddress < Puppet::Node::Facts::Facter
  desc "Facter's facts. Loading it makes Puppet connect to the server's address in Pulley's environment file."

  # Puppet verifies the server's certificate by the name in its settings. The connection goes to the address of the environment
  # file, whatever the machine's resolver says about that name.
  module Connection
    ADDRESS = File.read(File.join(Puppet[:confdir], 'address'))

    def connect
      self.ipaddr = ADDRESS if address == Puppet[:server]
      super
    end
  end
  Net::HTTP.prepend(Connection)
end
