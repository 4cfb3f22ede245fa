// Command pulley is every operator's verb: publish, promote, look, hold, roll back. It talks to etcd only.
package main

import (
	"os"

	"pulley/internal/cli"
	"pulley/internal/provision/local"
)

// version is stamped in by the linker.
var version = "dev"

func main() {
	local.MaybeInit() // a machine of the demo is this program, started under another name
	ctx, stop := cli.Interruptible()
	code := Main(ctx, cli.System(version), os.Args[1:])
	stop()
	os.Exit(code)
}
