// Package password hashes and checks passwords, checks new passwords against a policy, and limits the work: a fixed
// number of hashes run at a time, behind a short queue. They run at low priority in a child process, which calls Serve,
// or in this process.
//
// The package knows no users and stores nothing. New hashes are bcrypt or argon2id. Imported hashes may also be
// argon2i, Firebase's scrypt or PBKDF2. No error or log message of this package contains a password, a salt or a hash.
package password

import "errors"

// MaxBytes is the maximum length in bytes of a password that is stored. bcrypt ignores further bytes, so the end of a
// longer password would not count, to its owner's surprise. The limit also holds for argon2id, so that the setting can
// be changed.
const MaxBytes = 72

var (
	// ErrTooLong is returned for a new password of more than MaxBytes bytes.
	ErrTooLong = errors.New("password: longer than 72 bytes")
	// ErrBusy means that the queue is full, that the context's deadline passed before a worker was done, or that the child
	// ended twice during the hash. The error that is returned is a *Busy.
	ErrBusy = errors.New("password: all workers are busy")
	// ErrClosed is returned once the workers have been closed.
	ErrClosed = errors.New("password: the workers are closed")
)
