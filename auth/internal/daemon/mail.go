package daemon

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/google/uuid"

	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/mailbox"
	"gatehouse/auth/internal/outbound"
	"gatehouse/auth/internal/outbox"
	"gatehouse/auth/internal/sms"
)

// smtpInForce sends mails to the mail server that the current settings name.
type smtpInForce struct{ p atomic.Pointer[mail.SMTP] }

// Send implements mail.Sender.
func (s *smtpInForce) Send(ctx context.Context, m mail.Message) error {
	if to := s.p.Load(); to != nil {
		return to.Send(ctx, m)
	}
	return errors.New("no SMTP server is configured")
}

// smsInForce sends SMS by the gateway that the current settings name. While there is no gateway, SMS wait.
type smsInForce struct{ p atomic.Pointer[sms.Gateway] }

// Ready implements outbox.Resting.
func (s *smsInForce) Ready() bool { return s.p.Load() != nil }

// SendText implements outbox.Texter.
func (s *smsInForce) SendText(ctx context.Context, id uuid.UUID, m mail.SMS) error {
	if to := s.p.Load(); to != nil {
		return to.SendText(ctx, id, m)
	}
	return errors.New("no SMS gateway is configured")
}

// makeMail makes the renderer of mails, the senders of messages, and the outbox.
func (d *daemon) makeMail(l config.Live) {
	d.renderer = mail.NewRenderer(mail.RendererOptions{Now: d.clock.Now, Log: d.log.Logger, Watch: d.watch()})
	d.renderer.Apply(l.Mail)
	d.smtp.p.Store(l.SMTP)
	d.makeGateway(l.SMS)
	senders := map[string]outbox.Sender{mail.ChannelEmail: outbox.Mails(d.renderer, watchedSMTP{&d.smtp, d.watch()}),
		mail.ChannelSMS: outbox.Texts(&d.sms)}
	if d.config.Load().Dev.Mailbox {
		d.box = mailbox.New(d.clock.Now)
		senders = map[string]outbox.Sender{mail.ChannelEmail: outbox.Mails(d.renderer, d.box),
			mail.ChannelSMS: outbox.Texts(d.box)}
	}
	senders = map[string]outbox.Sender{
		mail.ChannelEmail: hookSender{d, hook.SendEmail, d.emailInput, senders[mail.ChannelEmail]},
		mail.ChannelSMS:   hookSender{d, hook.SendSMS, d.smsInput, senders[mail.ChannelSMS]},
		mail.ChannelHook:  hookSender{d, hook.AfterUserCreated, createdInput, nil},
	}
	d.outbox = outbox.New(outbox.Options{DB: d.db, Root: d.root, Senders: senders, Now: d.clock.Now,
		Log: d.log.Logger})
}

// channels returns the channels of the messages that this process sends.
func (d *daemon) channels() []string {
	all, h := []string{mail.ChannelEmail}, d.hooks.Load()
	if d.box != nil || d.sms.Ready() || h.On(hook.SendSMS) {
		all = append(all, mail.ChannelSMS)
	}
	if h.On(hook.AfterUserCreated) {
		all = append(all, mail.ChannelHook)
	}
	return all
}

// makeGateway replaces the SMS gateway. The previous gateway finishes the calls that it has begun.
func (d *daemon) makeGateway(s sms.Settings) {
	s.Log, s.Watch = d.log.Logger, d.watch()
	g := sms.New(s)
	if g != nil && s.Overridden() {
		d.log.Info("the SMS gateway is somewhere else than usual", "gateway", g.String())
	}
	if old := d.sms.p.Swap(g); old != nil {
		old.Close()
	}
}

// watchedSMTP is a mail.Sender that reports each mail as an outgoing call to traces and metrics.
type watchedSMTP struct {
	to    mail.Sender
	watch outbound.Watch
}

// Send implements mail.Sender.
func (s watchedSMTP) Send(ctx context.Context, m mail.Message) error {
	if s.watch == nil {
		return s.to.Send(ctx, m)
	}
	ctx, done := s.watch(ctx, outbound.Call{Target: "smtp"})
	err := s.to.Send(ctx, m)
	done(0, err)
	return err
}
