package serve

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/nicholas-fedor/shoutrrr"
	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"
)

// sender tells one URL. The URL has secrets: it is never part of a log, an error, or what etcd gets.
type sender struct {
	name    string // which flag, and the kind of service
	digest  string
	router  *router.ServiceRouter
	secrets []string
}

// newSenders reads the URLs of --notify.
func newSenders(urls []string) ([]sender, error) {
	var all []sender
	for i, raw := range urls {
		scheme, _, _ := strings.Cut(raw, "://")
		if strings.ContainsAny(scheme, "/@?") || len(scheme) > 32 {
			scheme = "no URL"
		}
		s := sender{name: fmt.Sprintf("--notify %d (%s)", i+1, scheme), secrets: secretsOf(raw)}
		sum := sha256.Sum256([]byte(raw))
		s.digest = hex.EncodeToString(sum[:6])
		var err error
		if s.router, err = shoutrrr.NewSender(slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), raw); err != nil {
			return nil, fmt.Errorf("cannot use %s: %s\ngive a URL as shoutrrr has them, like slack://, smtp://, telegram:// or generic+https://", s.name, s.clean(err))
		}
		s.router.Timeout = sendTimeout
		all = append(all, s)
	}
	return all, nil
}

// unsureError is that nobody knows whether a notice arrived.
type unsureError struct{ says string }

func (e *unsureError) Error() string { return e.says }

// send sends one message and waits for what comes of it.
func (s sender) send(title, text string) error {
	message := title
	if text != "" {
		message += "\n" + text
	}
	params := types.Params{"title": "Pulley: " + title}
	for _, err := range s.router.Send(message, &params) {
		if err == nil {
			continue
		}
		var timeout interface{ Timeout() bool }
		if errors.Is(err, router.ErrServiceTimeout) || errors.As(err, &timeout) && timeout.Timeout() {
			return &unsureError{fmt.Sprintf("no answer within %s", sendTimeout)}
		}
		return errors.New(s.clean(err))
	}
	return nil
}

// clean takes the secrets out of an error.
func (s sender) clean(err error) string {
	text := err.Error()
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, "…")
	}
	return text
}

// secretsOf are all parts of a URL that could be one: whom and what it names, but not its host's name.
func secretsOf(raw string) []string {
	all := []string{raw}
	_, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return all
	}
	if u, err := url.Parse(raw); err == nil && u.User == nil && strings.Contains(u.Host, ".") {
		_, rest, _ = strings.Cut(rest, u.Host)
	}
	pieces := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("/:@?&=,;#-", r) })
	}
	texts := []string{rest}
	if plain, err := url.PathUnescape(rest); err == nil && plain != rest {
		texts = append(texts, plain)
	}
	for _, t := range texts {
		all = append(all, t)
		for _, p := range pieces(t) {
			if len(p) >= 4 {
				all = append(all, p)
			}
		}
	}
	return all
}
