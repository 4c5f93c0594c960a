package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/daemon"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/mail"
)

// samples holds what the commands preview and send-test need to render mails.
type samples struct {
	config   config.Config
	live     config.Live
	renderer *mail.Renderer
	names    []string // kinds of mails to render
	tags     []string // languages to render them in
}

// samples reads the settings. If kind and tag are not "", they select one kind of mail and one language.
func (p *program) samples(f *flag.FlagSet, kind, tag string) (*samples, error) {
	c, l, _, err := p.load()
	if err != nil {
		return nil, err
	}
	s := &samples{config: c, live: l, names: mail.SampleNames(), tags: l.Mail.Languages.Tags()}
	if kind = strings.ToLower(kind); kind != "" && !slices.Contains(s.names, kind) {
		return nil, p.misused(f, "-kind is one of %s, not %q", strings.Join(s.names, ", "), kind)
	}
	if tag = locale.Normal(tag); tag != "" && !slices.Contains(s.tags, tag) {
		return nil, p.misused(f, "-locale is one of AUTH_SITE_LOCALES, %s, not %q", strings.Join(s.tags, ", "), tag)
	}
	if kind != "" {
		s.names = []string{kind}
	}
	if tag != "" {
		s.tags = []string{tag}
	}
	log := daemon.NewLogger(p.stderr, config.Log{Level: "warn", Format: "text"}).Logger
	s.renderer = mail.NewRenderer(mail.RendererOptions{Log: log})
	s.renderer.Apply(l.Mail)
	return s, nil
}

func (s *samples) render(ctx context.Context, name, tag, to string) (mail.Message, error) {
	m := mail.Sample(name, s.config.General.SiteURL, s.config.API.ExternalURL, time.Now())
	m.Locales, m.To = []string{tag}, cmp.Or(to, m.To)
	return s.renderer.Render(ctx, m)
}

// mailPreview runs the command "auth mail preview". It needs no database, and writes only into the folder.
func (p *program) mailPreview(ctx context.Context, f *flag.FlagSet, args []string) error {
	kind, tag := f.String("kind", "", "this kind only, such as magic_link"), f.String("locale", "", "this language only")
	dir := f.String("o", "", "folder to write to; it is made where it is missing")
	if _, err := p.parse(f, args, "", 0, 0); err != nil {
		return err
	}
	if *dir == "" {
		return p.misused(f, "-o names the folder to write to")
	}
	s, err := p.samples(f, *kind, *tag)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	var index strings.Builder
	index.WriteString("<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Mails</title>\n" +
		"<h1>Mails</h1>\n")
	fell, written := 0, 0
	for _, name := range s.names {
		for _, tag := range s.tags {
			m, err := s.render(ctx, name, tag, "")
			if err != nil {
				return err
			}
			if len(m.Faults) > 0 {
				fell++
			}
			file := name + "." + tag
			err = errors.Join(os.WriteFile(filepath.Join(*dir, file+".html"), []byte(m.HTML), 0o644),
				os.WriteFile(filepath.Join(*dir, file+".txt"), []byte("Subject: "+m.Subject+"\n\n"+m.Text), 0o644))
			if err != nil {
				return err
			}
			written++
			fmt.Fprintf(&index, "<h2>%s</h2>\n<p>%s (<a href=\"%[1]s.html\">HTML</a>, <a href=\"%[1]s.txt\">text</a>)</p>\n"+
				"<iframe src=\"%[1]s.html\" title=\"%[1]s\" sandbox width=\"700\" height=\"600\"></iframe>\n", file,
				html.EscapeString(m.Subject))
		}
	}
	if err := os.WriteFile(filepath.Join(*dir, "index.html"), []byte(index.String()), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%d mails are in %s\n", written, filepath.Join(*dir, "index.html"))
	if fell > 0 {
		return fmt.Errorf("%d mails have a text of yours that can't be used, and the built-in one in its place", fell)
	}
	return nil
}

// mailSendTest runs the command "auth mail send-test".
func (p *program) mailSendTest(ctx context.Context, f *flag.FlagSet, args []string) error {
	kind := f.String("kind", "", "this kind, such as magic_link, instead of a test mail")
	tag := f.String("locale", "", "this language instead of the default one")
	args, err := p.parse(f, args, "ADDRESS", 1, 1)
	if err != nil {
		return err
	}
	s, err := p.samples(f, cmp.Or(*kind, string(mail.Test)), *tag)
	if err != nil {
		return err
	}
	_, hooked := s.live.Hooks[hook.SendEmail]
	switch {
	case s.config.Dev.Mailbox:
		return errors.New("nothing is sent: AUTH_DEV_MAILBOX=true keeps all mails in the dev mailbox")
	case hooked:
		return errors.New("nothing is sent: the hook SEND_EMAIL sends all mails")
	case s.live.SMTP == nil:
		return errors.New("nothing is sent: AUTH_SMTP_HOST and AUTH_SMTP_ADMIN_EMAIL are not both set")
	}
	m, err := s.render(ctx, s.names[0], s.tags[0], args[0])
	if err != nil {
		return err
	}
	m.ID, m.At = uuid.New(), time.Now()
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	answer, err := s.live.SMTP.SendAnswered(ctx, m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "the server answered: %s\nMessage-ID: %s\n", answer, s.live.SMTP.MessageID(m))
	return err
}
