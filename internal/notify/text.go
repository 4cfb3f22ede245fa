package notify

import (
	"fmt"
	"time"

	"pulley/internal/store"
)

// Text renders a notice. The code of a newer version renders as itself.
func Text(n store.Notice) (title, text string) {
	who := n.Node
	if who == "" {
		who = "machine " + n.Machine
	}
	where := who + " in " + n.Environment
	switch n.Kind {
	case store.FirstBootFinished:
		return where + " is ready", fmt.Sprintf("The first boot took %s.", time.Duration(n.TookSeconds)*time.Second)
	case store.FirstBootFailed:
		return fmt.Sprintf("the first boot of %s failed at step %s", where, n.Step), string(n.Problem)
	case store.FirstBootStalled:
		text = fmt.Sprintf("The last message came at %s.", n.Since.UTC().Format(time.RFC3339))
		if n.Problem != "" {
			text += " " + string(n.Problem)
		}
		return fmt.Sprintf("the first boot of %s is stalled at step %s", where, n.Step), text
	case store.DuplicateRefused:
		return "another machine tried to join as " + where, fmt.Sprintf("Machine %s (%s, from %s) was refused.", n.Machine, n.Hostname, n.From)
	case store.DuplicateRuns:
		return "two machines run as " + where,
			fmt.Sprintf("Their boot ids are %s and %s. The node is frozen until `pulley unhold`.", n.Boots[0], n.Boots[1])
	case store.NodeFloods:
		return where + " floods etcd",
			fmt.Sprintf("It wrote %d bytes in %d writes within a minute. To remove its access: pulley nodes remove %s -e %s --forget", n.Bytes, n.Writes, n.Node, n.Environment)
	}
	return string(n.Kind) + ": " + where, ""
}
