package outbox

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
)

// Mails returns the sender of the channel "email". It renders each mail with the templates in use and passes it to the
// given mail.Sender, which is SMTP or the dev mailbox.
func Mails(r *mail.Renderer, to mail.Sender) Sender { return mails{r, to} }

type mails struct {
	renderer *mail.Renderer
	to       mail.Sender
}

func (s mails) Send(ctx context.Context, m Item) error {
	var p mail.Payload
	if json.Unmarshal(m.Payload, &p) != nil { // the parser's error is dropped, since it may quote the payload
		return &mail.Refused{Err: errors.New("the payload is no mail")}
	}
	if p.Current != nil { // queued for a hook, which gets both mails in one call
		if err := s.send(ctx, uuid.NewSHA1(m.ID, []byte("current")), m, *p.Current); err != nil {
			return err
		}
	}
	return s.send(ctx, m.ID, m, p)
}

func (s mails) send(ctx context.Context, id uuid.UUID, m Item, p mail.Payload) error {
	p.Ordered, p.Expires = m.CreatedAt, m.ExpiresAt
	rendered, err := s.renderer.Render(ctx, p)
	if err != nil {
		return err
	}
	rendered.ID, rendered.At = id, m.CreatedAt
	return s.to.Send(ctx, rendered)
}

// Texter sends an SMS. It is the dev mailbox or a gateway. The id is the same at every attempt, so that a receiver can
// recognize duplicates.
type Texter interface {
	SendText(ctx context.Context, id uuid.UUID, m mail.SMS) error
}

// Texts returns the sender of the channel "sms".
func Texts(to Texter) Sender { return texts{to} }

type texts struct{ to Texter }

// Ready reports whether the Texter is ready.
func (s texts) Ready() bool { return ready(s.to) }

func (s texts) Send(ctx context.Context, m Item) error {
	var p mail.SMS
	if json.Unmarshal(m.Payload, &p) != nil {
		return &mail.Refused{Err: errors.New("the payload is no SMS")}
	}
	return s.to.SendText(ctx, m.ID, p)
}
