package notify

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A login page that answers a redirected notice must not count as its receiver.
func TestRedirectedNoticeIsNotSent(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/login" {
			http.Redirect(w, r, "/login", http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	senders, err := newSenders([]string{"generic+" + server.URL + "/hook?disabletls=yes"})
	if err != nil {
		t.Fatal(err)
	}
	if err := senders[0].send("title", "text"); err == nil || !strings.Contains(err.Error(), "redirects") {
		t.Error(err)
	}
}
