package cli

import (
	"context"
	"log/slog"
	"time"

	"gatehouse/auth/internal/account/admin"
	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/daemon"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/settings"
)

// load reads the settings for a command. Most commands do not report the warnings that it returns, since the daemon and
// "auth check" do.
func (p *program) load() (config.Config, config.Live, []string, error) {
	c, l, r, err := p.read()
	return c, l, r.Brief(), err
}

// read reads the settings for the command check, which reports all warnings itself.
func (p *program) read() (config.Config, config.Live, *settings.Report, error) {
	c, l, _, r, err := config.Load(p.environ, p.file, nil)
	if err == nil {
		err = config.ExportStandard(p.environ, p.file)
	}
	return c, l, r, err
}

// rooms holds what a command about accounts needs.
type rooms struct {
	config config.Config
	db     *store.DB
	now    func() time.Time // PostgreSQL's clock
	root   *secret.Root
	keeper *keys.Keeper
	hashes *password.Workers
	users  *admin.Users
	// factors has the flows of second factors.
	factors *factor.Factors
}

// open opens the database for a command, and tries that only once. Log lines go to stderr as text.
func (p *program) open(ctx context.Context) (*rooms, error) {
	c, l, _, err := p.load()
	if err != nil {
		return nil, err
	}
	log := daemon.NewLogger(p.stderr, config.Log{Level: "warn", Format: "text"}).Logger
	db, err := daemon.OpenStore(ctx, c.StoreOptions(log), 0)
	if err != nil {
		return nil, err
	}
	if err := daemon.CheckSchema(ctx, db); err != nil {
		db.Close()
		return nil, err
	}
	if err := daemon.CheckMigrated(ctx, db); err != nil {
		db.Close()
		return nil, err
	}
	r := &rooms{config: c, db: db, root: c.Root()}
	serverTime, err := daemon.StartClock(ctx, db, log)
	if err != nil {
		db.Close()
		return nil, err
	}
	r.now = serverTime.Now
	r.keeper = keys.New(keys.Options{DB: db, Root: r.root, Clock: serverTime, Log: log}, l.Keys)
	r.hashes = password.NewWorkers(password.Options{Workers: 1, Params: l.Hash, Log: slog.New(slog.DiscardHandler)})
	core := flow.New(flow.Options{
		DB: db, Keys: r.keeper.Live(), Refresh: token.NewRefreshCodec(r.root.Keys(secret.Refresh)), Root: r.root,
		Passwords: r.hashes, Clock: serverTime, Log: log,
	}, l.Accounts)
	r.users, r.factors = admin.New(core), factor.New(core)
	return r, nil
}

// openAlone does what open does, for a command that reads or changes users, which may not run during a takeover.
func (p *program) openAlone(ctx context.Context) (*rooms, error) {
	r, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := daemon.CheckTakeover(ctx, r.db); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *rooms) close() {
	r.hashes.Close()
	r.db.Close()
}
