// Command pulley is every operator's verb: publish, promote, look, hold, roll back. It talks to etcd only.
package main

import (
	"os"

	"pulley/internal/cli"
	"pulley/internal/drivers/local"
	"pulley/internal/drivers/nspawn"
)

// version is stamped in by the linker.
var version = "dev"

func main() {
	local.MaybeInit() // parts of machines on this host are this program, started under other names
	nspawn.MaybeInit()
	ctx, stop := cli.Interruptible()
	code := Main(ctx, cli.System(version), os.Args[1:])
	stop()
	os.Exit(code)
}
