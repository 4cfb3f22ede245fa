// Command pulley-agent keeps one machine on the Puppet code and data that the operators of its fleet chose.
package main

import (
	"os"

	"pulley/internal/cli"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := cli.Interruptible()
	code := Main(ctx, cli.System(version), os.Args[1:])
	stop()
	os.Exit(code)
}
