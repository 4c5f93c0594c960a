// Package certs keeps certificates, keys and roots that lie in PEM files, and follows the files: a
// connection that begins after they have changed uses what they hold then, by a rename, a write in
// place or a swap of any symlink on the way (a Kubernetes volume's ..data too). Files that are no
// good change nothing: what was good stays in use, and one log line says why.
//
// It makes tls.Configs for both ends; what runs over them it does not know.
package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Files are the PEM files of one end. Empty names are not used.
type Files struct {
	// Cert is this end's certificate with what leads to its root, Key the key: both or neither.
	Cert, Key string
	// CA holds the roots that the peer's certificate must lead to.
	CA string
	// SystemRoots count in addition to those of CA. It is for clients: on a server it would admit any client with a
	// certificate of any public authority.
	SystemRoots bool
}

// Role is what a file of Files is for.
type Role uint8

// The roles, as the fields of Files.
const (
	Cert Role = iota
	Key
	CA
)

// Error is what is wrong with one file.
type Error struct {
	Role Role
	Path string
	Err  error
}

// Error is path: reason.
func (e *Error) Error() string {
	if pathError, ok := errors.AsType[*os.PathError](e.Err); ok && pathError.Path == e.Path {
		return pathError.Error()
	}
	return e.Path + ": " + e.Err.Error()
}

// Unwrap is the reason.
func (e *Error) Unwrap() error { return e.Err }

// Check reads the files as Open does and reports everything that is wrong: one *Error for each file.
func (f Files) Check() []*Error {
	_, errs := f.load()
	return errs
}

// maxBytes bounds one file. All public roots together are below 250 KiB.
const maxBytes = 4 << 20

// material is what the files held at one time. It does not change.
type material struct {
	texts [3][]byte // by Role
	pair  *tls.Certificate
	roots *x509.CertPool // nil: the system's
}

// load reads and parses everything. Where both files of the pair are readable and do not go
// together, the error is the key's.
func (f Files) load() (*material, []*Error) {
	m := &material{}
	var errs []*Error
	paths := [...]string{f.Cert, f.Key, f.CA}
	wrong := func(role Role, err error) { errs = append(errs, &Error{role, paths[role], err}) }
	read := func(role Role) bool {
		if paths[role] == "" {
			return false
		}
		var err error
		if m.texts[role], err = readFile(paths[role]); err != nil {
			wrong(role, err)
		}
		return err == nil
	}
	certRead, keyRead := read(Cert), read(Key)
	switch {
	case f.Cert != "" && f.Key == "":
		wrong(Cert, errors.New("a certificate without its key is of no use"))
	case f.Cert == "" && f.Key != "":
		wrong(Key, errors.New("a key without its certificate is of no use"))
	}
	certOK := certRead
	if certRead {
		if _, err := parseCertificates(m.texts[Cert]); err != nil {
			wrong(Cert, err)
			certOK = false
		}
	}
	if certOK && keyRead {
		pair, err := tls.X509KeyPair(m.texts[Cert], m.texts[Key])
		if err != nil {
			wrong(Key, fmt.Errorf("not the key of %s: %w", f.Cert, err))
		}
		m.pair = &pair
	}
	if read(CA) {
		if err := m.readRoots(f.SystemRoots); err != nil {
			wrong(CA, err)
		}
	}
	return m, errs
}

func (m *material) readRoots(system bool) error {
	roots, err := parseCertificates(m.texts[CA])
	if err != nil {
		return err
	}
	m.roots = x509.NewCertPool()
	if system {
		if pool, err := x509.SystemCertPool(); err == nil { // none: a lean image
			m.roots = pool
		}
	}
	for _, c := range roots {
		m.roots.AddCert(c)
	}
	return nil
}

// parseCertificates wants at least one, and every one readable: a half-written bundle is an error.
func parseCertificates(text []byte) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(all)+1, err)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("no PEM certificate in it (-----BEGIN CERTIFICATE-----)")
	}
	return all, nil
}

// readFile reads a bounded file; the path may lead to something endless.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a regular file"))
	}
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("larger than %d bytes", maxBytes)
	}
	return text, err
}

// Store holds what its files hold.
type Store struct {
	files Files
	log   *slog.Logger
	now   atomic.Pointer[material]
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu    sync.Mutex
	state State
}

// State is what there is to see of a Store.
type State struct {
	// NotAfter is when this end's certificate ends; zero without one.
	NotAfter time.Time `json:"not_after,omitzero"`
	// LoadedAt is when what is in use was read.
	LoadedAt time.Time `json:"loaded_at"`
	// Error is why newer files are not in use; empty when there are none.
	Error string `json:"error,omitempty"`
	// Reads is how often the files were read, Refused how often they were no good.
	Reads   uint64 `json:"reads"`
	Refused uint64 `json:"refused"`
}

// Open reads the files and follows them until Close. All must be good at first; the error names
// every one that is not. A nil log is none.
func Open(f Files, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{files: f.absolute(), log: log}
	w := newWatch(s) // before reading: what changes from here on is noticed
	m, errs := s.read()
	if len(errs) > 0 {
		w.w.Close()
		return nil, joined(errs)
	}
	s.use(m)
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.done.Go(func() { w.run(ctx) })
	return s, nil
}

// absolute keeps a Store at its files whatever becomes of the working directory.
func (f Files) absolute() Files {
	for _, path := range []*string{&f.Cert, &f.Key, &f.CA} {
		if *path == "" {
			continue
		}
		if abs, err := filepath.Abs(*path); err == nil {
			*path = abs
		}
	}
	return f
}

func joined(errs []*Error) error {
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = e
	}
	return errors.Join(all...)
}

// Close stops following the files. Configs made by the Store go on with what they have.
func (s *Store) Close() {
	s.stop()
	s.done.Wait()
}

// State is a copy of what is known now.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// read loads the files and counts.
func (s *Store) read() (*material, []*Error) {
	m, errs := s.files.load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Reads++; len(errs) > 0 {
		s.state.Refused++
	}
	return m, errs
}

// use puts m in force and says what is odd about it.
func (s *Store) use(m *material) {
	s.now.Store(m)
	s.mu.Lock()
	s.state.LoadedAt, s.state.Error = time.Now(), ""
	if m.pair != nil {
		s.state.NotAfter = m.pair.Leaf.NotAfter
	}
	s.mu.Unlock()
	if m.pair != nil {
		if now, leaf := time.Now(), m.pair.Leaf; now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
			s.log.Warn("certs: the certificate is not valid now", "file", s.files.Cert, "from", leaf.NotBefore,
				"to", leaf.NotAfter)
		}
	}
}

// reload takes the files if they are good and differ. It returns what is wrong otherwise.
func (s *Store) reload() error {
	m, errs := s.read()
	if len(errs) > 0 {
		return joined(errs)
	}
	changed, before := false, s.now.Load()
	for i := range m.texts {
		changed = changed || !bytes.Equal(m.texts[i], before.texts[i])
	}
	if changed {
		s.use(m)
		s.log.Info("certs: new files are in use", "certificate", s.files.Cert, "ca", s.files.CA,
			"not_after", s.State().NotAfter)
		return nil
	}
	s.mu.Lock()
	s.state.Error = "" // what was good is back
	s.mu.Unlock()
	return nil
}

// refused records files that are no good, and logs them once.
func (s *Store) refused(err error) {
	s.mu.Lock()
	known := s.state.Error == err.Error()
	s.state.Error = err.Error()
	s.mu.Unlock()
	if !known {
		s.log.Error("certs: files are not usable; those loaded before stay in use", "error", err)
	}
}
