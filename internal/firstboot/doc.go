// Package firstboot turns a machine into a node step by step: the plan that userdata writes, the list of steps, the loop
// around them, and what is remembered of them across a reboot.
//
// It must never do the work of a step, and never use the network: internal/firstboot/steps does the work, and reports the progress.
package firstboot
