// Package certs reads certificates, keys and roots from PEM files and watches the files for changes. A file may change
// by a rename, by a write in place, or by a swap of a symlink on its path, such as ..data in a Kubernetes volume. New
// connections use the new contents. If the new contents are invalid, the former contents stay in use, and one line in
// the log has the reason.
//
// The package makes tls.Configs for clients and servers. It does not know what they send over TLS.
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

// Files are the paths of a client's or server's PEM files. A file whose path is empty is not used.
type Files struct {
	// Cert is the program's own certificate with the chain to its root, and Key is its private key. Both are set, or
	// neither.
	Cert, Key string
	// CA has the roots to which the other side's certificate must lead.
	CA string
	// SystemRoots adds the roots of the system to those in CA. It is for clients only: a server would accept clients
	// with a certificate of any public authority.
	SystemRoots bool
}

// Role says which of the Files a file is.
type Role uint8

// The roles, named like the fields of Files.
const (
	Cert Role = iota
	Key
	CA
)

// Error is an error in one of the Files.
type Error struct {
	Role Role
	Path string
	Err  error
}

// Error returns the file's path and the reason.
func (e *Error) Error() string {
	if pathError, ok := errors.AsType[*os.PathError](e.Err); ok && pathError.Path == e.Path {
		return pathError.Error()
	}
	return e.Path + ": " + e.Err.Error()
}

// Unwrap returns the reason without the path.
func (e *Error) Unwrap() error { return e.Err }

// Check reads the files as Open does and returns all errors, one for each invalid file.
func (f Files) Check() []*Error {
	_, errs := f.load()
	return errs
}

// maxBytes bounds the size of one file. All public roots together have less than 250 KiB.
const maxBytes = 4 << 20

// material has the contents of all files as they were at one time. It does not change.
type material struct {
	texts [3][]byte // indexed by Role
	pair  *tls.Certificate
	roots *x509.CertPool // nil means the system's roots
}

// load reads and parses all files. If certificate and key are valid but do not belong together, the error is that of
// the key.
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
		if pool, err := x509.SystemCertPool(); err == nil { // an image with nothing but the program has no system roots
			m.roots = pool
		}
	}
	for _, c := range roots {
		m.roots.AddCert(c)
	}
	return nil
}

// parseCertificates parses PEM certificates. It returns an error if there is none, or if one is invalid, as in a bundle
// that is only half written.
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

// readFile reads a file of at most maxBytes: the path might lead to something endless.
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

// Store holds the contents of its files and watches the files for changes.
type Store struct {
	files Files
	log   *slog.Logger
	now   atomic.Pointer[material]
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu    sync.Mutex
	state State
}

// State is the state of a Store, for operators to see.
type State struct {
	// NotAfter is when the program's own certificate expires; zero if it has none.
	NotAfter time.Time `json:"not_after,omitzero"`
	// LoadedAt is when the contents that are in use were read.
	LoadedAt time.Time `json:"loaded_at"`
	// Error is the reason why the present files are not in use; empty if they are.
	Error string `json:"error,omitempty"`
	// Reads is the number of times that the files were read, and Refused is how many of these times they were invalid.
	Reads   uint64 `json:"reads"`
	Refused uint64 `json:"refused"`
}

// Open reads the files, and watches them until Close. All files must be valid; the error names every file that is not.
// If log is nil, nothing is logged.
func Open(f Files, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{files: f.absolute(), log: log}
	w := filewatch.New(filewatch.Options{Name: "certs", Log: s.log, Signature: s.files.signature, Poll: lookEvery,
		// Most is as short as Settle: in a busy directory, changes might otherwise delay reading for ever.
		Settle: settle, Most: settle,
		Concerns: func(fsnotify.Event) bool { return true }})
	s.follow(w) // before reading, so that changes during reading are noticed
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

// absolute returns the files with absolute paths, so that a Store finds them if the working directory changes.
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

// Close stops watching the files. The tls.Configs that the Store has made keep working with its present contents.
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

// read loads the files, and increments the counter Reads of the state.
func (s *Store) read() (*material, []*Error) {
	m, errs := s.files.load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Reads++; len(errs) > 0 {
		s.state.Refused++
	}
	return m, errs
}

// use makes the contents m the contents in use, and logs a warning if its certificate is not valid at present.
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

// reload reads the files, and puts them in use if they are valid and differ from those in use. It returns an error if
// they are invalid.
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
	s.state.Error = "" // the files again have the contents that are in use
	s.mu.Unlock()
	return nil
}

// refused records the error for invalid files. It logs the error, unless it logged the same error last time.
func (s *Store) refused(err error) {
	s.mu.Lock()
	known := s.state.Error == err.Error()
	s.state.Error = err.Error()
	s.mu.Unlock()
	if !known {
		s.log.Error("certs: files are not usable; those loaded before stay in use", "error", err)
	}
}
