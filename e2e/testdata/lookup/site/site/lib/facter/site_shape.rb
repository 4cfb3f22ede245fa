Facter.add(:site_shape) { setcode { { 'form' => 'round', 'sides' => [0, 1] } } }
