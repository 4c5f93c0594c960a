// Package certs keeps certificates, keys and roots from PEM files, and follows the files: a connection that begins
// after they have changed, by a rename, a write in place or a swap of any symlink on the path (a Kubernetes volume's
// ..data too), uses the new contents. Invalid files change nothing: the former contents stay in use, and one log line
// says why.
//
// It makes tls.Configs for clients and servers; it does not know what runs over TLS.
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

	"github.com/fsnotify/fsnotify"

	"gatehouse/shared/filewatch"
)

// Files are the PEM files of a client or server. Empty names are not used.
type Files struct {
	// Cert is the file of the own certificate with the chain to its root, Key that of its key: both or neither.
	Cert, Key string
	// CA is the file of the roots that the peer's certificate must lead to.
	CA string
	// SystemRoots adds the system's roots to those of CA. It is for clients: on a server it would admit any client with
	// a certificate of any public authority.
	SystemRoots bool
}

// Role is the purpose of a file of Files.
type Role uint8

// The roles, as the fields of Files.
const (
	Cert Role = iota
	Key
	CA
)

// Error is the error in one file.
type Error struct {
	Role Role
	Path string
	Err  error
}

// Error returns path: reason.
func (e *Error) Error() string {
	if pathError, ok := errors.AsType[*os.PathError](e.Err); ok && pathError.Path == e.Path {
		return pathError.Error()
	}
	return e.Path + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Check reads the files as Open does and reports all errors: one *Error for each file.
func (f Files) Check() []*Error {
	_, errs := f.load()
	return errs
}

// maxBytes bounds one file. All public roots together are below 250 KiB.
const maxBytes = 4 << 20

// material is the contents of the files at one time. It does not change.
type material struct {
	texts [3][]byte // by Role
	pair  *tls.Certificate
	roots *x509.CertPool // nil: the system's
}

// load reads and parses all files. If both files of the pair are readable and do not match, the error is the key's.
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
		if pool, err := x509.SystemCertPool(); err == nil { // a lean image has no system roots
			m.roots = pool
		}
	}
	for _, c := range roots {
		m.roots.AddCert(c)
	}
	return nil
}

// parseCertificates requires at least one certificate and no unreadable one: a half-written bundle is an error.
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

// Store has the contents of its files.
type Store struct {
	files Files
	log   *slog.Logger
	now   atomic.Pointer[material]
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu    sync.Mutex
	state State
}

// State is the state of a Store, for operators.
type State struct {
	// NotAfter is when the own certificate ends; zero without one.
	NotAfter time.Time `json:"not_after,omitzero"`
	// LoadedAt is when the contents in use were read.
	LoadedAt time.Time `json:"loaded_at"`
	// Error is why newer files are not in use; empty when there are none.
	Error string `json:"error,omitempty"`
	// Reads is how often the files were read, Refused how often they were invalid.
	Reads   uint64 `json:"reads"`
	Refused uint64 `json:"refused"`
}

// Open reads the files and follows them until Close. All files must be valid at first; the error names every invalid
// one. A nil log discards.
func Open(f Files, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{files: f.absolute(), log: log}
	w := filewatch.New(filewatch.Options{Name: "certs", Log: s.log, Signature: s.files.signature, Poll: lookEvery,
		Settle: settle, Most: settle, // never postponed, or a busy directory would hide its certificates
		Concerns: func(fsnotify.Event) bool { return true }})
	s.follow(w) // before reading, so that later changes are noticed
	m, errs := s.read()
	if len(errs) > 0 {
		w.Close()
		return nil, joined(errs)
	}
	s.use(m)
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.done.Go(func() { s.watch(ctx, w) })
	return s, nil
}

// absolute makes paths absolute, so that a Store keeps its files when the working directory changes.
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

// Close stops following the files. Configs made by the Store go on with its present contents.
func (s *Store) Close() {
	s.stop()
	s.done.Wait()
}

// State returns a copy of the present state.
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

// use puts m in force and warns about oddities.
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

// reload takes the files if they are valid and differ. Otherwise it returns what is wrong.
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
	s.state.Error = "" // the contents in use are back in the files
	s.mu.Unlock()
	return nil
}

// refused records invalid files, and logs them once.
func (s *Store) refused(err error) {
	s.mu.Lock()
	known := s.state.Error == err.Error()
	s.state.Error = err.Error()
	s.mu.Unlock()
	if !known {
		s.log.Error("certs: files are not usable; those loaded before stay in use", "error", err)
	}
}
