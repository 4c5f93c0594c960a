package sms

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/mail"
)

// maxAnswer is the longest answer, in bytes, that is accepted from a gateway. The gateways' answers have a few hundred
// bytes.
const maxAnswer = 64 << 10

// answer is a gateway's answer.
type answer struct {
	status int
	body   []byte
}

func (a answer) ok() bool { return a.status >= 200 && a.status <= 299 }

// failure is the reason why a gateway has not accepted a message. final means that the gateway will never accept it.
type failure struct {
	text  string
	final bool
}

// again returns a failure that is not final, so that the message is tried again.
func again(format string, args ...any) *failure { return &failure{text: fmt.Sprintf(format, args...)} }

// decode decodes the body, which must be a JSON object. An answer without JSON does not come from the gateway itself
// but, for example, from a proxy, so the failure is not final.
func (a answer) decode(into any) *failure {
	if json.Unmarshal(a.body, into) != nil { // the parser's error is dropped, since it may quote the answer
		return again("it answers %d without the JSON that was expected", a.status)
	}
	return nil
}

// aboutMessage reports whether the status means that the request itself is wrong, and not its credentials, its origin
// or the rate of requests.
func (a answer) aboutMessage() bool {
	return a.status == http.StatusBadRequest || a.status == http.StatusUnprocessableEntity
}

// text is a JSON member that gateways write as a string or as a number. Any other value is decoded as "".
type text string

// UnmarshalJSON decodes a string or a number. It never fails.
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

// hide makes a gateway's text one line of limited length, and replaces the secrets and the recipient, text and code of
// the message, which must not be logged or stored.
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
		words = hideDigits(words, m.To[n-7:], "<recipient>") // the number without the country code
	}
	words = hideDigits(words, m.Token, "<code>")
	return locale.Short(locale.OneLine(words), 250)
}

// hideDigits replaces a sequence of digits by another text, even if the digits are separated, as in +1 (555) 000-1.
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
