package stablehash

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"
)

const nodes = 5000

// A biased hash makes nodes with similar names run, retry and renew at the same moment.
func TestSimilarNamesSpreadEvenly(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, role := range []string{"web", "compute", "controller", "db-eu-1-"} {
		for day := range 30 {
			date := start.AddDate(0, 0, day).Format(time.DateOnly)
			sums := make([]uint64, nodes)
			for n := range nodes {
				sums[n] = Sum(role+strconv.Itoa(n+1), date)
			}
			for _, buckets := range []uint64{2, 3, 8, 64, 100} {
				counts := make([]int, buckets)
				for _, sum := range sums {
					counts[sum%buckets]++
				}
				checkEven(t, fmt.Sprintf("%s on %s, %d buckets", role, date, buckets), counts)
			}
		}
	}
}

// The same node must not draw the same number on consecutive days.
func TestConsecutiveDaysSpreadEvenly(t *testing.T) {
	t.Parallel()
	const days = 1000
	for n := range 100 {
		counts := make([]int, 8)
		for day := range days {
			counts[Sum("web"+strconv.Itoa(n+1), strconv.Itoa(20000+day))%8]++
		}
		checkEven(t, fmt.Sprintf("web%d", n+1), counts)
	}
}

func TestFractionIsEvenAndBelowOne(t *testing.T) {
	t.Parallel()
	counts := make([]int, 20)
	for n := range nodes {
		f := Fraction("web"+strconv.Itoa(n+1), "0")
		if f < 0 || f >= 1 {
			t.Fatalf("the fraction of web%d is %v", n+1, f)
		}
		counts[int(f*20)]++
	}
	checkEven(t, "fractions", counts)
}

// Nodes of several versions share a schedule, so the sums must never change.
func TestSumIsStable(t *testing.T) {
	t.Parallel()
	if got := Sum("web1", "2026"); got != 8782132328112331331 {
		t.Errorf("Sum(web1, 2026) is %d", got)
	}
	if Sum("ab", "c") == Sum("a", "bc") {
		t.Error("boundaries between parts do not count")
	}
}

// checkEven compares chi-square with its mean plus eight standard deviations. Its distribution is wider than a normal one
// for few buckets.
func checkEven(t *testing.T, name string, counts []int) {
	t.Helper()
	total := 0
	for _, c := range counts {
		total += c
	}
	want := float64(total) / float64(len(counts))
	chi := 0.0
	for _, c := range counts {
		chi += (float64(c) - want) * (float64(c) - want) / want
	}
	free := float64(len(counts) - 1)
	if limit := free + 8*math.Sqrt(2*free) + 10; chi > limit {
		t.Errorf("%s: chi-square is %.0f, more than %.0f: %v", name, chi, limit, counts)
	}
}
