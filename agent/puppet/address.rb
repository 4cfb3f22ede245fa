# Written anew for each run by pulley-agent.
require 'net/http'

# Puppet verifies the server's certificate by the name in its settings. The connection goes to the address of the environment
# file, whatever the machine's resolver says about that name.
module PulleyServerAddress
  def connect
    self.ipaddr = ENV['PULLEY_SERVER_ADDRESS'] if address == ENV['PULLEY_SERVER_NAME']
    super
  end
end
Net::HTTP.prepend(PulleyServerAddress)
