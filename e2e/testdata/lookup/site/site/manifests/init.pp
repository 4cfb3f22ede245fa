class site (String $greeting = "class default", Integer $number = 1, Array $from_module = []) { notify { "greeting ${greeting}": } }
