package main

import (
	"errors"
	"testing"

	"pulley/internal/cli"
)

// A command that was copied from a message would act on another environment, or on none.
func TestAdviceNamesTheEnvironment(t *testing.T) {
	t.Parallel()
	o := &options{}
	o.root = newRoot(&options{env: cli.Env{Getenv: func(string) string { return "" }}})
	const text = "try `pulley history`, `pulley nodes remove web1`, `pulley env plan`, `pulley history -e prod`, `pulley sign -e ENVIRONMENT --sign-key FILE`, `pulley nosuch` and `pulley`"
	if got := o.complete(text); got != text {
		t.Errorf("without an environment: %s", got)
	}
	o.fleet.Used = "dev@t42"
	want := "try `pulley history -e dev@t42`, `pulley nodes remove web1 -e dev@t42`, `pulley env plan`, `pulley history -e prod`, `pulley sign -e dev@t42 --sign-key FILE`, `pulley nosuch` and `pulley`"
	if got := o.complete(text); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	cause := errors.New("x")
	if err := (completedError{cause, "y"}); !errors.Is(err, cause) || cli.Message(err) != "y" {
		t.Errorf("%v", err)
	}
}
