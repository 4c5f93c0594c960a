package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/mailbox"
	"gatehouse/auth/internal/outbox"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/sms"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/httpx"
	"gatehouse/shared/self"
)

// daemon is what the steps of serve share.
type daemon struct {
	log       *logger
	config    atomic.Pointer[config] // replaced as a whole by a SIGHUP
	root      *secret.Root
	db        *store.DB
	keeper    *keys.Keeper
	passwords *password.Workers
	renderer  *mail.Renderer
	smtp      smtpInForce
	sms       smsInForce
	box       *mailbox.Box // nil without AUTH_DEV_MAILBOX
	outbox    *outbox.Outbox
	accounts  *account.Accounts
	api       *httpapi.Server
	providers atomic.Pointer[provider.Set] // replaced likewise
	hooks     atomic.Pointer[hook.Set]     // replaced likewise; nil: none
	observed  observation
	draining  atomic.Bool
	migrated  atomic.Bool
}

// serve is the whole daemon: a straight line from settings to an open listener, a wait, and the same line
// back. Ending ctx stops it in any phase; a stop in order returns nil.
func (p *program) serve(ctx context.Context, args []string) (err error) {
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	skip := f.Bool("skip-migrations", false, "refuse a database that lacks migrations, instead of applying them")
	if _, err := p.parse(f, args, "[-skip-migrations]", 0, 0); err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // before anything is read: it must never end the process
	defer signal.Stop(hup)
	signal.Ignore(syscall.SIGPIPE) // nor does whoever reads its log, by going away

	c, l, warnings, err := p.load()
	if err != nil {
		return err
	}
	d := &daemon{log: newLogger(p.stderr, c.Log), root: c.root()}
	defer func() {
		if err != nil && c.Log.File != "" { // standard error has it anyway
			d.log.Error("the daemon ends", "error", err)
		}
	}()
	for _, w := range warnings {
		d.log.Warn(w)
	}
	d.config.Store(&c)
	self.KeepHeapFloor(c.API.HeapFloor)
	d.startTelemetry(ctx)

	if err := d.openDatabase(ctx, *skip); err != nil {
		return stopped(ctx, err)
	}
	defer d.db.Close()
	d.keeper = keys.New(keys.Options{DB: d.db, Root: d.root, Log: d.log.Logger}, l.keys)
	if err := d.keeper.Start(ctx); err != nil {
		return stopped(ctx, err)
	}
	d.passwords = password.NewWorkers(password.Options{
		Workers: c.Password.Workers, Params: l.hash, Child: hashingCommand(), Log: d.log.Logger,
	})
	defer d.passwords.Close()
	d.makeMail(l)
	providers, err := d.newProviders(&l)
	if err != nil {
		return err
	}
	d.useProviders(providers, l.external)
	d.makeHooks(&l)
	if err := d.makeAPI(l); err != nil {
		return err
	}
	if err := d.measure(); err != nil {
		return err
	}
	defer d.stopTelemetry()
	d.showMetrics(ctx)

	// Requests in flight still need what runs in the background, so that ends after them.
	background, endBackground := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer endBackground()

	failed := make(chan error, 2)
	at, err := d.openMailbox(background, &wg, failed)
	if err != nil {
		return err
	}
	listener, err := httpx.Listen(ctx, "tcp", hostPort(c.API.Host, c.API.Port))
	if err != nil {
		return stopped(ctx, fmt.Errorf("PORT: %w", err))
	}
	server := httpx.NewServer(httpx.Closing(d.api, d.draining.Load), timeouts(c.API.MaxDuration), d.log.Logger)
	wg.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	})
	wg.Go(func() { d.outbox.Run(background) })
	wg.Go(func() { d.keeper.Run(background) })
	wg.Go(func() { d.renderer.Run(background) })
	wg.Go(func() { d.sweep(background) })
	wg.Go(func() {
		for {
			select {
			case <-hup:
				d.reload(background, p.environ, p.file)
			case <-background.Done():
				return
			}
		}
	})
	d.log.Info("ready", "version", self.Version("auth"), "http", listener.Addr().String(), "mailbox", at)

	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	d.drain(server)
	return err
}

// stopped is nil when the daemon was told to stop: what fails while it starts then fails because of that.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (d *daemon) openDatabase(ctx context.Context, skipMigrations bool) (err error) {
	o := d.config.Load().storeOptions(d.log.Logger)
	if t := d.observed.tracing; t != nil {
		o.Tracer = t.Tracer(scopeName)
	}
	if d.db, err = openStore(ctx, o, databasePatience); err != nil {
		return err
	}
	if err = d.db.CheckPooler(ctx); err != nil {
		err = fmt.Errorf("DATABASE_URL: %w", err)
	} else if skipMigrations {
		err = allMigrated(ctx, d.db)
	} else {
		var n int
		if n, err = d.db.Migrate(ctx); n > 0 {
			d.log.Info("migrated the database", "migrations", n, "namespace", d.config.Load().DB.Namespace)
		}
		if n > 0 && n == store.Migrations() {
			d.log.Info("all tables are new and empty: if there should be users in them, DATABASE_URL or AUTH_DB_NAMESPACE is another than before")
		}
	}
	if err != nil {
		d.db.Close()
	}
	return err
}

// smtpInForce is the mail server of now.
type smtpInForce struct{ p atomic.Pointer[mail.SMTP] }

// Send implements mail.Sender.
func (s *smtpInForce) Send(ctx context.Context, m mail.Message) error {
	if to := s.p.Load(); to != nil {
		return to.Send(ctx, m)
	}
	return errors.New("no SMTP server is configured")
}

// smsInForce is the SMS gateway of now; while there is none, SMS are left alone.
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

// makeMail makes the sending side.
func (d *daemon) makeMail(l live) {
	d.renderer = mail.NewRenderer(mail.RendererOptions{Log: d.log.Logger, Watch: d.watch()})
	d.renderer.Apply(l.mail)
	d.smtp.p.Store(l.smtp)
	d.makeGateway(l.sms)
	senders := map[string]outbox.Sender{mail.ChannelEmail: outbox.Mails(d.renderer, watchedSMTP{&d.smtp, d.watch()}), mail.ChannelSMS: outbox.Texts(&d.sms)}
	if d.config.Load().Dev.Mailbox {
		d.box = mailbox.New(time.Now)
		senders = map[string]outbox.Sender{mail.ChannelEmail: outbox.Mails(d.renderer, d.box), mail.ChannelSMS: outbox.Texts(d.box)}
	}
	senders = map[string]outbox.Sender{
		mail.ChannelEmail: hookSender{d, hook.SendEmail, d.emailInput, senders[mail.ChannelEmail]},
		mail.ChannelSMS:   hookSender{d, hook.SendSMS, smsInput, senders[mail.ChannelSMS]},
		mail.ChannelHook:  hookSender{d, hook.AfterUserCreated, createdInput, nil},
	}
	d.outbox = outbox.New(outbox.Options{DB: d.db, Root: d.root, Senders: senders, Now: time.Now, Log: d.log.Logger})
}

// channels are those that this process sends.
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

// makeGateway puts the SMS gateway in force. The one before finishes what it has begun.
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

// newProviders makes the set of external providers for the settings of the flows.
func (d *daemon) newProviders(l *live) (*provider.Set, error) {
	l.external.Log, l.external.Watch = d.log.Logger, d.watch()
	set, err := provider.New(l.external)
	if err != nil {
		return nil, err
	}
	l.accounts.External.Providers = set
	return set, nil
}

// useProviders puts a set in force. The one before keeps nothing open.
func (d *daemon) useProviders(set *provider.Set, s provider.Settings) {
	for _, line := range s.Overrides() {
		d.log.Info("an external provider is somewhere else than usual", "provider", line)
	}
	if old := d.providers.Swap(set); old != nil {
		old.Close()
	}
}

// watchCaptcha has questions about captchas watched, and says where they are asked when that is not the provider's
// own address.
func (d *daemon) watchCaptcha(l *live) {
	v := l.api.Captcha
	if v == nil {
		return
	}
	if v.Overridden() {
		d.log.Info("the captcha provider is somewhere else than usual", "provider", v.String())
	}
	if w := d.watch(); w != nil {
		l.api.Captcha = v.Watched(w)
	}
}

func (d *daemon) makeAPI(l live) (err error) {
	d.watchCaptcha(&l)
	codec := token.NewRefreshCodec(d.root.Keys(secret.Refresh))
	d.accounts = account.New(account.Options{
		DB: d.db, Keys: d.keeper.Live(), Refresh: codec, Root: d.root, Passwords: d.passwords, Wake: d.outbox.Wake, SignedIn: d.signedIn(), Log: d.log.Logger,
	}, l.accounts)
	observer, err := d.observer()
	if err != nil {
		return err
	}
	d.api, err = httpapi.New(httpapi.Options{
		Accounts: d.accounts, Keys: d.keeper.Live(), Refresh: codec, Version: self.Release(), Log: d.log.Logger, Observer: observer,
		Checks: []httpapi.Check{
			{Name: "stopping", Check: d.checkDraining}, {Name: "database", Check: d.db.Ping},
			{Name: "migrations", Check: d.checkMigrations}, {Name: "keys", Check: d.checkKeys}, {Name: "outbox", Check: d.checkOutbox},
		},
	}, l.api)
	return err
}

func (d *daemon) checkDraining(context.Context) error {
	if d.draining.Load() {
		return errors.New("the daemon is stopping")
	}
	return nil
}

func (d *daemon) checkMigrations(ctx context.Context) error {
	if d.migrated.Load() {
		return nil
	}
	err := allMigrated(ctx, d.db)
	d.migrated.Store(err == nil)
	return err
}

func (d *daemon) checkKeys(context.Context) error {
	if d.keeper.Live().Load() == nil {
		return errors.New("no signing keys")
	}
	return nil
}

// checkOutbox: a message that fails is due again later, so one that stays due means that nobody sends.
func (d *daemon) checkOutbox(ctx context.Context) error {
	most := d.config.Load().API.OutboxAge
	if most == 0 {
		return nil
	}
	age, err := d.db.OldestDueOn(ctx, d.channels(), time.Now())
	if err == nil && age > most {
		err = fmt.Errorf("a message has been due for %s", age.Round(time.Second))
	}
	return err
}

// openMailbox serves the dev mailbox and returns its address, "" without one.
func (d *daemon) openMailbox(ctx context.Context, wg *sync.WaitGroup, failed chan<- error) (string, error) {
	if d.box == nil {
		return "", nil
	}
	l, err := httpx.Listen(ctx, "tcp", hostPort("127.0.0.1", d.config.Load().Dev.MailboxPort))
	if err != nil {
		return "", fmt.Errorf("AUTH_DEV_MAILBOX_PORT: %w", err)
	}
	wg.Go(func() {
		if err := d.box.Serve(ctx, l, d.log.Logger); err != nil && ctx.Err() == nil {
			failed <- err
		}
	})
	return l.Addr().String(), nil
}

// timeouts bound a connection; a request that may take longer has longer to be answered.
func timeouts(request time.Duration) httpx.Timeouts {
	t := httpx.Timeouts{Header: 2 * time.Second, Read: 30 * time.Second, Write: max(time.Minute, request+30*time.Second), Idle: 2 * time.Minute}
	if request == 0 {
		t.Write = 0
	}
	return t
}

// drain stops taking work in the order that balancers need: unready first, then a pause for them to
// notice, then no new connections and a bounded wait for the requests in flight. The outbox gives back
// what it could not send when the background ends.
func (d *daemon) drain(server *http.Server) {
	began, c := time.Now(), d.config.Load().API
	d.draining.Store(true)
	d.log.Info("stopping", "delay", c.DrainDelay, "timeout", c.DrainTimeout)
	time.Sleep(c.DrainDelay)
	ctx, cancel := context.WithTimeout(context.Background(), c.DrainTimeout)
	defer cancel()
	if err := httpx.Stop(ctx, server); err != nil {
		d.log.Warn("requests were cut: they took longer than AUTH_DRAIN_TIMEOUT", "timeout", c.DrainTimeout)
	}
	d.log.Info("stopped", "took", time.Since(began))
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
