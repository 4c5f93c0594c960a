package outbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// NoRedirect is a http.Client's CheckRedirect that follows no redirect. It is for calls with secrets, which must not be
// sent to another address.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// SendForm sends a form and returns the status and the whole body of the answer, which should be JSON. header may be
// nil. The errors contain neither the query nor the path of the URL.
func (c Clients) SendForm(ctx context.Context, method, address string, form url.Values,
	header http.Header) (status int, body []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, nil, errors.New("its URL can't be read")
	}
	maps.Copy(r.Header, header)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.Header.Set("Accept", "application/json")
	resp, err := c.Configured.Do(r)
	if err != nil {
		return 0, nil, Quiet(r, err)
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, fmt.Errorf("reading the answer of %s: %w", r.URL.Host, err)
	}
	return resp.StatusCode, body, nil
}

// Quiet returns the error of a failed call without the URL, whose path, query or user may contain a key.
func Quiet(r *http.Request, err error) error {
	if call, ok := errors.AsType[*url.Error](err); ok {
		err = call.Err
	}
	return fmt.Errorf("calling %s: %w", r.URL.Host, err)
}

var noWord = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// Word makes another service's id or error code safe for a log line: characters other than letters, digits and _.- are
// replaced by question marks, and the text is truncated to the number of bytes in the parameter most.
func Word(s string, most int) string {
	s = noWord.ReplaceAllString(s, "?")
	return s[:min(len(s), most)]
}
