package config

import "testing"

// The listener of a health check is the daemon's: both read the same.
func TestLoadListener(t *testing.T) {
	for _, environ := range [][]string{
		nil, {"PORT=9999"}, {"GOTRUE_API_PORT=9999", "PORT=1"}, {"GOTRUE_API_HOST=::1"}, {"AUTH_API_PORT=0"},
		{"AUTH_API_HOST=0.0.0.0", "AUTH_JWT_SECRET_FILE=/not/there", "AUTH_DRAIN_DELAY=never"},
	} {
		got, err := LoadListener(environ, "")
		if err != nil {
			t.Errorf("%q: %v", environ, err)
		}
		want, _, _, _, _ := Load(environ, "", nil)
		if got.Host != want.API.Host || got.Port != want.API.Port {
			t.Errorf("%q: %+v, want %s %d", environ, got, want.API.Host, want.API.Port)
		}
	}
	if _, err := LoadListener([]string{"PORT=http"}, ""); err == nil {
		t.Error("PORT=http is accepted")
	}
}
