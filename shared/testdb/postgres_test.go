package testdb

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestPostgres(t *testing.T) {
	a, b := Postgres(t), Postgres(t)
	if a == b {
		t.Errorf("two tests share %s", a)
	}
	for _, url := range []string{a, b} {
		if n := One[int](t, url, "with made as (select 1) select count(*) from pg_class where relname = 'mark'"); n != 0 {
			t.Errorf("%s is not empty", url)
		}
	}
	goleak.VerifyNone(t, IgnoreServers())
}

func TestTemplate(t *testing.T) {
	prepared := 0
	template := NewTemplate(func(url string) error {
		prepared++
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "create table mark as select 7 as n")
		return err
	})
	for range 3 {
		if n := One[int](t, template.New(t), "select n from mark"); n != 7 {
			t.Errorf("the copy holds %d, want 7", n)
		}
	}
	if prepared != 1 {
		t.Errorf("prepared %d times", prepared)
	}
}
