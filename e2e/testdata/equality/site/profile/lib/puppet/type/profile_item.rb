Puppet::Type.newtype(:profile_item) do
  newparam(:name, namevar: true)
  newparam(:size) { munge { |value| Integer(value) * 2 } }
  newparam(:kind)
end
