package daemon

import (
	"io"
	"log/slog"
	"os"
	"sync"

	"gatehouse/auth/internal/config"
	"gatehouse/shared/logging"
)

// Logger is the daemon's log. Its level and its file can change while it is in use.
type Logger struct {
	*slog.Logger
	level slog.LevelVar
	out   logOut
}

// NewLogger returns a Logger that writes to stderr, or appends to the file that c names. If the file cannot be opened,
// the Logger reports that on stderr and writes there: a full disk must not prevent sign-ins.
func NewLogger(stderr io.Writer, c config.Log) *Logger {
	l := &Logger{out: logOut{path: c.File, w: stderr, stderr: stderr}}
	l.level.Set(logging.Level(c.Level))
	o := &slog.HandlerOptions{Level: &l.level, ReplaceAttr: cleanAttr}
	if c.Format == "text" {
		l.Logger = slog.New(slog.NewTextHandler(&l.out, o))
	} else {
		l.Logger = slog.New(flatJSON{slog.NewJSONHandler(&l.out, o), &l.out})
	}
	l.reopen()
	return l
}

// reopen opens the file again, since the file may have been renamed.
func (l *Logger) reopen() {
	if err := l.out.reopen(); err != nil {
		l.Error("AUTH_LOG_FILE cannot be opened; the log goes to standard error", "error", err)
	}
}

// cleanAttr does what logging.CleanAttr does. It also writes times in UTC and levels in lower case.
func cleanAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 {
		switch a.Key {
		case slog.TimeKey:
			return slog.Time(a.Key, a.Value.Time().UTC())
		case slog.LevelKey:
			if level, ok := a.Value.Any().(slog.Level); ok {
				return slog.String(a.Key, lowerLevel(level))
			}
		}
	}
	return logging.CleanAttr(a)
}

// logOut is the output of the log. A file stays open until the process ends.
type logOut struct {
	mu        sync.Mutex
	path      string // "": stderr
	w, stderr io.Writer
	torn      bool // w ends with an incomplete line
}

func (o *logOut) reopen() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.path == "" {
		return nil
	}
	f, err := os.OpenFile(o.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o660)
	if old, ok := o.w.(*os.File); ok && o.w != o.stderr {
		old.Close()
	}
	if err != nil {
		o.w, o.torn = o.stderr, false
		return err
	}
	end, _ := f.Seek(0, io.SeekEnd)
	o.w, o.torn = f, o.torn && end > 0
	return nil
}

// Write implements io.Writer. A line that cannot be written to the file, for example because the disk is full, goes to
// standard error.
func (o *logOut) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	line := p
	if o.torn {
		line = append([]byte{'\n'}, p...)
	}
	n, err := o.w.Write(line)
	o.torn = err != nil && (o.torn || n > 0)
	if err != nil && o.w != o.stderr {
		return o.stderr.Write(p)
	}
	return min(n, len(p)), err
}
