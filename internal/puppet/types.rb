# Written anew for each run by pulley-agent. What Puppet's types do otherwise in a run without a server.
require 'json'

module Pulley
  SETTINGS = JSON.parse(File.read(File.join(Puppet[:confdir], 'pulley.json'))).freeze

  # The bucket of a server is the node's own bucket.
  module OwnBucket
    def initialize(*)
      super
      return if self[:path]

      warning("there is no server: the node's own bucket is used")
      self[:path] = Puppet[:clientbucketdir]
    end
  end

  # A bucket, or a copy beside the file, would keep the old contents of files with secrets.
  module NoSecretsInBackups
    def perform_backup(file = nil)
      return super unless SETTINGS['secrets'] || parameter(:content)&.sensitive

      notice('not backed up: a backup keeps secrets') if self[:backup] && Puppet::FileSystem.exist?(file || self[:path])
      true
    end
  end

  # The service of a replaced puppet agent stays as the takeover left it.
  module StaysOff
    def noop?
      super || Array(SETTINGS['stays_off']).include?(self[:name]) # null where no agent was replaced
    end
  end

  # A preview changes nothing, also where a resource sets `noop => false`.
  module OnlyLooks
    def noop?
      catalog && !catalog.host_config? ? super : true
    end
  end

  Puppet::Type.prepend(OnlyLooks) if SETTINGS['preview']
  Puppet[:show_diff] = false if SETTINGS['secrets'] # a noop run shows diffs to a person
  Puppet::Type.type(:filebucket).prepend(OwnBucket)
  Puppet::Type.type(:file).prepend(NoSecretsInBackups)
  Puppet::Type.type(:service).prepend(StaysOff)
end
