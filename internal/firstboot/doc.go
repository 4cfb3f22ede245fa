// Package firstboot turns a machine into a node step by step. It owns the plan that userdata writes, the list of steps,
// the loop that runs them, and their state across a reboot.
//
// It must never do the work of a step, and never use the network: agent/firstboot/steps does the work and reports
// the progress.
package firstboot
