Puppet::Functions.create_function(:'profile::shout') do
  dispatch(:shout) { param 'String', :text }
  def shout(text)
    "#{text.upcase} by Ruby"
  end
end
