// Package firstboot turns a machine into a node step by step: the plan that userdata writes, the list of steps, the loop
// around them, and what is remembered of them across a reboot.
//
// It never does a step's work, and talks to nobody: pulley-agent gives it what each step does, and who is told.
package firstboot
