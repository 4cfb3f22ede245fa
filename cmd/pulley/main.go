// Command pulley provides every operator's verb: publish, promote, inspect, hold, roll back. It talks to etcd only.
package main

import (
	"os"
	_ "time/tzdata" // the windows of rollouts, on machines without time zones

	"pulley/internal/cli"
	"pulley/internal/machines/drivers"
)

// version is set by the linker.
var version = "dev"

func main() {
	drivers.MaybeInit()
	ctx, stop := cli.Interruptible()
	code := Main(ctx, cli.System(version), os.Args[1:])
	stop()
	os.Exit(code)
}
