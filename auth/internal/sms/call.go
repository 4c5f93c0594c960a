package sms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/outbound"
)

// maxAnswer is the longest answer in bytes; those of gateways have a few hundred.
const maxAnswer = 64 << 10

// answer is what a gateway said.
type answer struct {
	status int
	body   []byte
}

func (a answer) ok() bool { return a.status >= 200 && a.status <= 299 }

// failure is why a message was not taken. final: it never will be.
type failure struct {
	text  string
	final bool
}

// again is a failure that may pass or be mended.
func again(format string, args ...any) *failure { return &failure{text: fmt.Sprintf(format, args...)} }

// decode reads the answer as a JSON object. What isn't one wasn't said by the gateway, whatever its status.
func (a answer) decode(into any) *failure {
	if json.Unmarshal(a.body, into) != nil { // the parser's text may quote the answer
		return again("it answers %d without the JSON that was expected", a.status)
	}
	return nil
}

// aboutMessage: the status blames the request itself, not its sender, origin or frequency.
func (a answer) aboutMessage() bool {
	return a.status == http.StatusBadRequest || a.status == http.StatusUnprocessableEntity
}

// call makes one. Its errors hold neither the query nor the path of the URL.
func (g *Gateway) call(ctx context.Context, method, address string, form url.Values,
	header http.Header) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
	if err != nil {
		return answer{}, errors.New("its URL can't be read")
	}
	for name, values := range header {
		r.Header[name] = values
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.Header.Set("Accept", "application/json")
	status, body, err := outbound.Send(g.http.Configured, r)
	return answer{status, body}, err
}

// text is a member that gateways write as a string or as a number; null, and what is neither, is "".
type text string

// UnmarshalJSON never fails.
func (t *text) UnmarshalJSON(b []byte) error {
	*t = ""
	switch {
	case len(b) > 0 && b[0] == '"':
		var s string
		if json.Unmarshal(b, &s) == nil {
			*t = text(s)
		}
	case len(b) > 0 && (b[0] == '-' || b[0] >= '0' && b[0] <= '9'):
		*t = text(b)
	}
	return nil
}

// hide makes one line of moderate length of a gateway's words, without what must not be kept.
func hide(words string, m mail.SMS, secrets []string) string {
	words = strings.ToValidUTF8(words, "?")
	for _, s := range secrets {
		if s != "" {
			words = strings.NewReplacer(s, "<secret>", url.QueryEscape(s), "<secret>").Replace(words)
		}
	}
	if m.Text != "" {
		words = strings.ReplaceAll(words, m.Text, "<text>")
	}
	words = hideDigits(words, m.To, "<recipient>")
	if n := len(m.To); n > 9 {
		words = hideDigits(words, m.To[n-7:], "<recipient>") // as it is written within the country
	}
	words = hideDigits(words, m.Token, "<code>")
	return locale.Short(locale.OneLine(words), 250)
}

// hideDigits finds digits however they are grouped: +1 (555) 000-1.
func hideDigits(words, digits, instead string) string {
	if digits == "" {
		return words
	}
	var pattern strings.Builder
	pattern.WriteString(`\+?\(?`)
	for i, c := range digits {
		if i > 0 {
			pattern.WriteString(`[^0-9A-Za-z]{0,2}`)
		}
		pattern.WriteString(regexp.QuoteMeta(string(c)))
	}
	return regexp.MustCompile(pattern.String()).ReplaceAllLiteralString(words, instead)
}
