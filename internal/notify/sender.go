package notify

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/nicholas-fedor/shoutrrr"
	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"
)

// sender sends to one URL. The URL contains secrets and must not reach a log, an error or etcd.
type sender struct {
	name    string // the flag and the scheme: "--notify 1 (slack)"
	router  *router.ServiceRouter
	secrets []string
}

// refuseRedirects makes shoutrrr report a redirected message as not sent. Its webhooks use http.DefaultClient, for which it has no
// setting: the client would follow to a login page without the message, and the page's answer would be that of the receiver. No
// other code of this program uses http.DefaultClient.
var refuseRedirects = sync.OnceFunc(func() {
	http.DefaultClient.CheckRedirect = func(*http.Request, []*http.Request) error {
		return errors.New("the receiver redirects to another address")
	}
})

// newSenders reads the URLs of --notify.
func newSenders(urls []string) ([]sender, error) {
	refuseRedirects()
	var all []sender
	for i, raw := range urls {
		scheme, _, _ := strings.Cut(raw, "://")
		if strings.ContainsAny(scheme, "/@?") || len(scheme) > 32 {
			scheme = "no URL"
		}
		s := sender{name: fmt.Sprintf("--notify %d (%s)", i+1, scheme), secrets: secretsOf(raw)}
		var err error
		if s.router, err = shoutrrr.NewSender(slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), raw); err != nil {
			return nil, fmt.Errorf("cannot use %s: %s\ngive a URL in the form of shoutrrr, such as slack://, smtp://, telegram:// or generic+https://", s.name, s.clean(err))
		}
		s.router.Timeout = sendTimeout
		all = append(all, s)
	}
	return all, nil
}

// unsureError reports that a notice may have arrived.
type unsureError struct{ says string }

func (e *unsureError) Error() string { return e.says }

// send sends one message and waits for the answer.
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

// clean removes the secrets from an error.
func (s sender) clean(err error) string {
	text := err.Error()
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, "…")
	}
	return text
}

// secretsOf returns all parts of a URL that could be secret: everything except the host name.
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
