package mail

import (
	"encoding/json"
	"fmt"
	netmail "net/mail"
	"slices"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"gatehouse/auth/internal/locale"
)

// Headers are the headers that AUTH_SMTP_HEADERS adds to every mail, sorted by name.
type Headers []Header

// Header is one added header. In its values $messageType is replaced by the mail's kind.
type Header struct {
	Name   string
	Values []string
}

// ours are the names of headers that only the daemon writes, so that AUTH_SMTP_HEADERS must not contain them. Other
// headers, such as Reply-To and List-Unsubscribe, are free.
var ours = []string{"from", "to", "cc", "bcc", "subject", "date", "message-id", "mime-version", "sender", "return-path",
	"received", "auto-submitted"}

// ParseHeaders parses AUTH_SMTP_HEADERS: a JSON object whose keys are names and whose values are lists of strings.
// After an error the caller logs a warning and sends mails without these headers.
func ParseHeaders(text string) (Headers, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var object map[string][]string
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return nil, fmt.Errorf("AUTH_SMTP_HEADERS: not a JSON object of lists: %w", err)
	}
	var list Headers
	for name, values := range object {
		lower := strings.ToLower(name)
		if name == "" || strings.Trim(lower, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || len(name) > 70 {
			return nil, fmt.Errorf("AUTH_SMTP_HEADERS: %q is no header's name", name)
		}
		if slices.Contains(ours, lower) || strings.HasPrefix(lower, "content-") {
			return nil, fmt.Errorf("AUTH_SMTP_HEADERS: %s is written by the service itself", name)
		}
		for i, v := range values {
			values[i] = locale.OneLine(v)
		}
		list = append(list, Header{Name: name, Values: values})
	}
	slices.SortFunc(list, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// bracketed returns an address in angle brackets, as SMTP commands need it. It quotes a local part that is not a
// dot-atom, such as a..b, which docs/accounts.md#addresses allows.
func bracketed(address string) string { return (&netmail.Address{Address: address}).String() }

// MessageID returns the Message-ID header's value for a mail, without the angle brackets.
func (s *SMTP) MessageID(m Message) string { return m.ID.String() + "@" + s.helo }

// build makes the complete message in two alternatives: plain text and, preferred, HTML.
func (s *SMTP) build(m Message) *gomail.Msg {
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	for _, h := range s.o.Headers {
		var values []string
		for _, v := range h.Values {
			values = append(values, strings.ReplaceAll(v, "$messageType", string(m.Kind)))
		}
		msg.SetGenHeader(gomail.Header(h.Name), values...)
	}
	msg.FromMailAddress(&netmail.Address{Name: s.o.SenderName, Address: s.o.From})
	msg.ToMailAddress(&netmail.Address{Address: m.To})
	msg.Subject(locale.OneLine(m.Subject))
	msg.SetMessageIDWithValue(s.MessageID(m))
	msg.SetDateWithValue(m.At.UTC())
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	if m.Locale != "" {
		msg.SetGenHeader("Content-Language", m.Locale)
	}
	msg.SetBodyString(gomail.TypeTextPlain, m.Text)
	msg.AddAlternativeString(gomail.TypeTextHTML, m.HTML)
	return msg
}
