package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
)

// mail runs the command "auth mail". It does not decrypt the contents of messages.
func (p *program) mail(ctx context.Context, args []string) error {
	if len(args) == 0 || !slices.Contains([]string{"list", "resend", "preview", "send-test"}, args[0]) {
		return p.misusedGroup("mail")
	}
	f := flag.NewFlagSet("mail "+args[0], flag.ContinueOnError)
	switch args[0] {
	case "resend":
		return p.mailResend(ctx, f, args[1:])
	case "preview":
		return p.mailPreview(ctx, f, args[1:])
	case "send-test":
		return p.mailSendTest(ctx, f, args[1:])
	}
	state := f.String("state", "", "only these: pending, sent, failed or expired")
	n := f.Int("n", 50, "how many")
	if _, err := p.parse(f, args[1:], "", 0, 0); err != nil {
		return err
	}
	switch {
	case *state != "" && !slices.Contains(store.MessageStates, *state):
		return p.misused(f, "-state is pending, sent, failed or expired, not %q", *state)
	case *n < 1:
		return p.misused(f, "-n is at least 1, not %d", *n)
	}
	r, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	list, err := r.db.Messages(ctx, store.MessageFilter{State: *state, Limit: *n}, r.now())
	if err != nil {
		return err
	}
	t := table(p.stdout, "ID", "CHANNEL", "KIND", "STATE", "TRIES", "CREATED", "DUE OR DONE", "USER", "ERROR")
	for _, m := range list {
		when := m.DueAt
		if !m.DoneAt.IsZero() {
			when = m.DoneAt
		}
		user := ""
		if m.User != uuid.Nil {
			user = m.User.String()
		}
		t.row(m.ID.String(), m.Channel, m.Kind, m.State, strconv.Itoa(m.Attempts), clock(m.CreatedAt),
			clock(when), user, m.Error)
	}
	return t.Flush()
}

func (p *program) mailResend(ctx context.Context, f *flag.FlagSet, args []string) error {
	args, err := p.parse(f, args, "ID", 1, 1)
	if err != nil {
		return err
	}
	id, err := uuid.Parse(args[0])
	if err != nil {
		return fmt.Errorf("%q is no id; auth mail list shows them", args[0])
	}
	r, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	if _, err := r.db.ResendMessage(ctx, id, r.now().UTC()); errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf(
			"no message %s can be sent: it was sent, or its link or code is no longer good; the user must ask again",
			id)
	} else if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "%s is due now; a running daemon sends it\n", id)
	return err
}
