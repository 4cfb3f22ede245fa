package provision

// See looks without the fleet's lock, at a plan that was just made of the stored environment from world, and reports whether
// Once would find something that has been dead for long enough. The notes say why something that is dead is left alone.
func (w *Watcher) See(p Plan, world World) (ripe bool, notes []string) {
	d := Watched{Dead: deadOf(p)}
	if w.outage(p, world, &d) {
		return false, d.Notes
	}
	ripeNow := spared(w.ripe(d.Dead, world.Now), world, &d)
	return len(ripeNow) > 0, d.Notes
}
