# r10k reads this file in the place of the Puppetfile, which it evaluates as r10k does, and lists its modules for Pulley.
require 'json'
require 'pathname'

root = ENV['PULLEY_ROOT']
branch = ENV['PULLEY_BRANCH']
plan = ENV['PULLEY_PLAN']
modules = []
folder = 'modules'
folders = [::Dir.pwd, root] # where modules are installed, and where the Puppetfile is read
relative = lambda do |path|
  full = ::File.expand_path(path.to_s, root)
  from = folders.find { |folder| full.start_with?(folder + '/') } || root
  ::Pathname.new(full).relative_path_from(::Pathname.new(from)).to_s
end

define_singleton_method(:moduledir) { |location| super(folder = relative.call(location)) }

define_singleton_method(:mod) do |name, args = nil|
  found = { title: name, folder: folder }
  if args.is_a?(::Hash)
    args.each { |key, value| args[key] = branch if value == :control_branch && branch }
    found[:folder] = args[:install_path] = relative.call(args[:install_path]) if args[:install_path]
    found[:local] = true if args[:local] || args[:type].to_s == 'local'
    found[:remote] = (args[:git] || args[:source]).to_s
    found[:ref] = args.values_at(:version, :branch, :tag, :commit, :ref).compact.last.to_s
  else
    found[:ref] = args.to_s
  end
  modules << found
  super(name, args)
end

# r10k has no variables there, and the Puppetfile must see none of this file.
def self.evaluate
  instance_eval(::File.read(ENV['PULLEY_ROOT'] + '/Puppetfile'), ENV['PULLEY_ROOT'] + '/Puppetfile')
end
::Dir.chdir(root) { evaluate }

text = ::JSON.generate(modules)
raise 'it names other modules each time that it is read' if ::File.exist?(plan) && ::File.read(plan) != text
::File.write(plan, text)

# r10k takes a tag from its cache without a question to the server, even if the tag moved there. A commit does not move.
if defined?(::R10K::Git::StatefulRepository)
  ::R10K::Git::StatefulRepository.prepend(::Module.new { def sync_cache?(ref) super || @cache.ref_type(ref) != :commit end })
end
