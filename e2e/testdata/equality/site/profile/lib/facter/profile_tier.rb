Facter.add(:profile_tier) do
  setcode { Facter.value(:networking)['hostname'].start_with?('web') ? 'front' : 'back' }
end
