// Package mailbox replaces SMTP and SMS gateways during development: it keeps the messages that would have been sent,
// and shows them as web pages, with links and codes to click and copy, and as JSON.
//
// It contains the sign-in links of all users in clear text. Therefore it needs a loopback listener of its own, and
// answers only under loopback names, so that no web page can read it through a host name that resolves to 127.0.0.1. It
// keeps messages only in memory.
package mailbox

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
)

// These limit the messages that are kept. The oldest messages are dropped first.
const (
	mostMessages = 500
	mostBytes    = 32 << 20
)

// Message is a mail or an SMS in JSON.
type Message struct {
	ID      uuid.UUID `json:"id"`
	At      time.Time `json:"at"`
	Channel string    `json:"channel"` // "email" or "sms"
	Kind    string    `json:"kind"`
	To      string    `json:"to"`
	Subject string    `json:"subject"`
	Text    string    `json:"text"`
	HTML    string    `json:"html"`
	// Link is the link in the mail, Code the one-time code in the mail or SMS; "" if there is none.
	Link string `json:"link"`
	Code string `json:"code"`
	// Locale is the language tag of the built-in texts in the message.
	Locale string `json:"locale"`
	// CodeInText is set if Text contains the code, which depends on AUTH_MAILER_SHOW and the templates.
	CodeInText bool `json:"code_in_text"`
}

func (m *Message) size() int {
	return len(m.Kind) + len(m.To) + len(m.Subject) + len(m.Text) + len(m.HTML) + len(m.Link) + len(m.Code)
}

// Box keeps messages. It may be used by many goroutines.
type Box struct {
	now func() time.Time

	mu      sync.Mutex
	list    []Message // oldest first
	bytes   int
	arrived chan struct{} // closed and replaced whenever a message arrives
}

// New returns an empty Box.
func New(now func() time.Time) *Box { return &Box{now: now, arrived: make(chan struct{})} }

// Send keeps a mail. It implements mail.Sender.
func (b *Box) Send(_ context.Context, m mail.Message) error {
	b.add(Message{
		ID: m.ID, Channel: mail.ChannelEmail, Kind: string(m.Kind), To: m.To, Subject: m.Subject,
		Text: m.Text, HTML: m.HTML, Link: m.Link, Code: m.Code, Locale: m.Locale,
	})
	return nil
}

// SendText keeps an SMS. It implements outbox.Texter.
func (b *Box) SendText(_ context.Context, id uuid.UUID, m mail.SMS) error {
	b.add(Message{ID: id, Channel: mail.ChannelSMS, Kind: m.Kind, To: m.To, Text: m.Text, Code: m.Token,
		Locale: m.Locale})
	return nil
}

// add adds a message, or replaces it if the same message was sent before.
func (b *Box) add(m Message) {
	m.At, m.CodeInText = b.now().UTC(), m.Code != "" && strings.Contains(m.Text, m.Code)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = slices.DeleteFunc(b.list, func(o Message) bool {
		if o.ID != m.ID {
			return false
		}
		b.bytes -= o.size()
		return true
	})
	b.list = append(b.list, m)
	b.bytes += m.size()
	for len(b.list) > mostMessages || b.bytes > mostBytes && len(b.list) > 1 {
		b.bytes -= b.list[0].size()
		b.list[0] = Message{}
		b.list = b.list[1:]
	}
	close(b.arrived)
	b.arrived = make(chan struct{})
}

// Clear drops all messages.
func (b *Box) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list, b.bytes = nil, 0
}

// Filter selects messages; a field that is "" selects any.
type Filter struct{ To, Kind, Channel string }

func (f Filter) takes(m *Message) bool {
	return (f.To == "" || strings.EqualFold(f.To, m.To) || "+"+m.To == f.To) &&
		(f.Kind == "" || f.Kind == m.Kind) && (f.Channel == "" || f.Channel == m.Channel)
}

// Messages returns the messages that match the filter, newest first.
func (b *Box) Messages(f Filter) []Message {
	list, _ := b.look(f)
	return list
}

// Wait does what Messages does, but if no message matches, it waits until one arrives or ctx ends.
func (b *Box) Wait(ctx context.Context, f Filter) []Message {
	for {
		list, arrived := b.look(f)
		if len(list) > 0 {
			return list
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return list
		}
	}
}

func (b *Box) look(f Filter) ([]Message, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []Message{} // so that JSON has [] and never null
	for i := len(b.list) - 1; i >= 0; i-- {
		if f.takes(&b.list[i]) {
			list = append(list, b.list[i])
		}
	}
	return list, b.arrived
}
