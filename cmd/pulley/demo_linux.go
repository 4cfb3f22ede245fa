package main

import "pulley/internal/demo"

var runDemo = demo.Run
