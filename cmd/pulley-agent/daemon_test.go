package main

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"
)

// A daemon must not leave a machine unmanaged for its first minutes. It must not run two ticks at the same time, which
// would start two Puppets.
func TestDaemonTicksAtOnceThenOnScheduleWithoutOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		schedule, err := cron.ParseStandard("*/5 * * * *")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var at []time.Duration
		running, ended := 0, make(chan struct{})
		go func() {
			defer close(ended)
			loop(ctx, time.Now, schedule.Next, nil, func(context.Context) {
				if running++; running > 1 {
					t.Error("two ticks at once")
				}
				at = append(at, time.Since(start))
				if len(at) == 2 {
					<-time.After(12 * time.Minute) // two due times pass meanwhile
				}
				running--
			})
		}()
		<-time.After(31 * time.Minute)
		cancel()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Fatal("the loop did not end with its context")
		}
		want := []time.Duration{0, 5 * time.Minute, 20 * time.Minute, 25 * time.Minute, 30 * time.Minute}
		if fmt.Sprint(at) != fmt.Sprint(want) {
			t.Errorf("ticks at %v, want %v", at, want)
		}
	})
}

// A node must see its turn in a job although nothing is due, and an order during a tick must cause another tick.
func TestDaemonTicksWhenOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, ordered := time.Now(), make(chan struct{}, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		defer cancel()
		var at []time.Duration
		go func() {
			<-time.After(time.Minute)
			ordered <- struct{}{}
			<-time.After(time.Minute + time.Second)
			ordered <- struct{}{}
		}()
		loop(ctx, time.Now, func(now time.Time) time.Time { return now.Add(time.Hour) }, ordered, func(context.Context) {
			at = append(at, time.Since(start))
			<-time.After(30 * time.Second)
			if len(at) == 2 {
				<-time.After(time.Minute)
			}
		})
		want := []time.Duration{0, time.Minute, 150 * time.Second}
		if fmt.Sprint(at) != fmt.Sprint(want) {
			t.Errorf("ticks at %v, want %v", at, want)
		}
	})
}

// A schedule without a next time must not cause ticks without a pause.
func TestDaemonWithoutNextTimeWaitsForItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		schedule, err := cron.ParseStandard("0 0 30 2 *")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ticks := 0
		loop(ctx, time.Now, schedule.Next, nil, func(context.Context) {
			if ticks++; ticks > 1 {
				cancel()
			}
		})
		if ticks != 1 {
			t.Errorf("it ticked %d times", ticks)
		}
	})
}
