package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gophercloud/gophercloud/v2"

	"pulley/internal/clip"
	"pulley/internal/machines"
)

// defaultWait is the pause where a cloud that throttles sets none.
const defaultWait = 10 * time.Second

// cause returns the error of a request with its kind and the cloud's message.
func cause(err error) error {
	var answer gophercloud.ErrUnexpectedResponseCode
	if !errors.As(err, &answer) {
		var again *gophercloud.ErrUnableToReauthenticate
		if errors.As(err, &again) && errors.As(again.ErrReauth, &answer) {
			return fmt.Errorf("cannot log in again: %w", kind(answer))
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer before the deadline: %w", err)
		}
		return err
	}
	return kind(answer)
}

// kind returns the error of a status. Where one status has two meanings, Nova's message decides.
func kind(answer gophercloud.ErrUnexpectedResponseCode) error {
	text := message(answer.Body)
	if text == "" {
		text = http.StatusText(answer.Actual)
	}
	err := fmt.Errorf("the cloud answers %d: %s", answer.Actual, text)
	lower := strings.ToLower(text)
	if to := answer.ResponseHeader.Get("Location"); answer.Actual/100 == 3 && to != "" {
		return fmt.Errorf("%w\nPulley does not follow the redirect to %s: correct the address in clouds.yaml or in the cloud's catalog", err, clean(to))
	}
	switch answer.Actual {
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge: // Nova of old used 413
		if answer.Actual == http.StatusRequestEntityTooLarge && strings.Contains(lower, "quota") {
			return fmt.Errorf("%w: %w", machines.ErrQuota, err)
		}
		return &machines.WaitError{After: retryAfter(answer.ResponseHeader.Get("Retry-After"), time.Now()), Err: err}
	case http.StatusServiceUnavailable:
		if after := answer.ResponseHeader.Get("Retry-After"); after != "" {
			return &machines.WaitError{After: retryAfter(after, time.Now()), Err: err}
		}
	case http.StatusForbidden:
		if strings.Contains(lower, "quota") || strings.Contains(lower, "maximum number of ports") {
			return fmt.Errorf("%w: %w", machines.ErrQuota, err)
		}
		return fmt.Errorf("%w: %w", machines.ErrRefused, err)
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable:
		return fmt.Errorf("%w: %w", machines.ErrRefused, err)
	case http.StatusConflict:
		// Most conflicts pass. These are about the request, and stay.
		for _, lasting := range []string{"multiple possible networks", "use an id to be more specific", "multiple security groups"} {
			if strings.Contains(lower, lasting) {
				return fmt.Errorf("%w: %w", machines.ErrRefused, err)
			}
		}
	}
	return err
}

// retryAfter reads the header of RFC 9110, section 10.2.3: seconds or a date.
func retryAfter(header string, now time.Time) time.Duration {
	wait := defaultWait
	if seconds, err := strconv.Atoi(strings.TrimSpace(header)); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(header); err == nil {
		wait = at.Sub(now)
	}
	return min(max(wait, time.Second), time.Hour)
}

// ofNova reports whether an error is Nova's own, {"computeFault": {"code": 500, …}}, and not that of a gateway, which does not know the
// outcome.
func ofNova(answer gophercloud.ErrUnexpectedResponseCode) bool {
	var object map[string]struct {
		Code int `json:"code"`
	}
	if json.Unmarshal(answer.Body, &object) != nil {
		return false
	}
	for _, fault := range object {
		if fault.Code == answer.Actual {
			return true
		}
	}
	return false
}

// message returns the readable part of an answer: {"badRequest": {"code": 400, "message": "…"}} of Nova,
// {"NeutronError": {"message": "…"}}, {"error": {"message": "…"}} of Keystone, or text.
func message(body []byte) string {
	var object map[string]json.RawMessage
	if json.Unmarshal(body, &object) == nil {
		for _, value := range object {
			var inner struct {
				Message string `json:"message"`
			}
			if json.Unmarshal(value, &inner) == nil && inner.Message != "" {
				return clean(inner.Message)
			}
		}
	}
	if strings.Contains(string(body), "<html") {
		return "" // of a proxy
	}
	return clean(string(body))
}

// clean returns a text of the cloud as one short line.
func clean(s string) string {
	const most = 300
	return clip.Line(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " "), most)
}
