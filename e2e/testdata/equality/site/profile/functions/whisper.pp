function profile::whisper(String $text) >> String {
  "${downcase($text)} in ${environment} on ${facts['networking']['hostname']}"
}
