package outbound

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
)

// NoRedirect is a client's CheckRedirect for calls with secrets, which must not be sent to another address.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Send makes a call and reads the whole answer.
func Send(client *http.Client, r *http.Request) (status int, body []byte, err error) {
	resp, err := client.Do(r)
	if err != nil {
		return 0, nil, Quiet(r, err)
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, fmt.Errorf("reading the answer of %s: %w", r.URL.Host, err)
	}
	return resp.StatusCode, body, nil
}

// Quiet returns a failed call's error without the URL, whose path, query or user may contain a key.
func Quiet(r *http.Request, err error) error {
	if call, ok := errors.AsType[*url.Error](err); ok {
		err = call.Err
	}
	return fmt.Errorf("calling %s: %w", r.URL.Host, err)
}

var noWord = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// Word returns another service's id or error code in a form for a log line.
func Word(s string, most int) string {
	s = noWord.ReplaceAllString(s, "?")
	return s[:min(len(s), most)]
}
