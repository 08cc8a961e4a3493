#include "linalg/partial_eigen.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "linalg/blas.h"
#include "linalg/factor.h"

// LAPACK's own interface (factor.cc says how rows and columns stand).
extern "C" {
void dsytrd_(const char* uplo, const int* n, double* a, const int* lda, double* d, double* e, double* tau, double* work,
             const int* lwork, int* info, size_t uplo_length);
void dsterf_(const int* n, double* d, double* e, int* info);
void dstemr_(const char* jobz, const char* range, const int* n, double* d, double* e, const double* vl,
             const double* vu, const int* il, const int* iu, int* m, double* w, double* z, const int* ldz,
             const int* nzc, int* isuppz, int* tryrac, double* work, const int* lwork, int* iwork, const int* liwork,
             int* info, size_t jobz_length, size_t range_length);
void dstedc_(const char* compz, const int* n, double* d, double* e, double* z, const int* ldz, double* work,
             const int* lwork, int* iwork, const int* liwork, int* info, size_t compz_length);
void dormtr_(const char* side, const char* uplo, const char* trans, const int* m, const int* n, const double* a,
             const int* lda, const double* tau, double* c, const int* ldc, double* work, const int* lwork, int* info,
             size_t side_length, size_t uplo_length, size_t trans_length);
}

namespace df::linalg {
namespace {

// Rows of vectors that one call turns back. LAPACK's blocked code does not touch the reflectors, which all threads
// read; below kBlockedSize it is not blocked, and writes them for a moment.
constexpr size_t kTurnedRows = 128;
constexpr size_t kBlockedSize = 256;

Status FromInfo(std::string_view routine, int info) {
  if (info == 0) return Status::Ok();
  return Internal("LAPACK's " + std::string(routine) + " ended with code " + std::to_string(info));
}

// T = Q^T A Q with its diagonal d [n] and the one beside it e [n - 1]; `reflectors` and tau make Q.
struct Tridiagonal {
  Mat<double> reflectors;
  std::vector<double> d, e, tau;
};

Result<Tridiagonal> Tridiagonalise(Mat<double> a) {
  const size_t size = a.rows();
  Tridiagonal t{std::move(a), std::vector<double>(size), std::vector<double>(size), std::vector<double>(size)};
  const int n = BlasInt(size), ask = -1;
  int info = 0;
  double best = 0;
  dsytrd_("L", &n, t.reflectors.Row(0), &n, t.d.data(), t.e.data(), t.tau.data(), &best, &ask, &info, 1);
  DF_RETURN_IF_ERROR(FromInfo("sytrd", info));
  std::vector<double> work(static_cast<size_t>(best) + 1);
  const int n_work = BlasInt(work.size());
  dsytrd_("L", &n, t.reflectors.Row(0), &n, t.d.data(), t.e.data(), t.tau.data(), work.data(), &n_work, &info, 1);
  DF_RETURN_IF_ERROR(FromInfo("sytrd", info));
  return t;
}

// Vectors [range] of T by robust representations; false where they fail.
bool TryRobustVectors(const Tridiagonal& t, const EigenRange& range, Mat<double>& vectors) {
  std::vector<double> d = t.d, e = t.e, values(d.size());
  const int n = BlasInt(d.size()), first = BlasInt(range.first + 1), last = BlasInt(range.end);
  const int n_vectors = BlasInt(vectors.rows());
  const double unused = 0;
  int found = 0, try_accuracy = 1, info = 0;
  std::vector<int> support(2 * std::max<size_t>(vectors.rows(), 1)), iwork(10 * d.size());
  std::vector<double> work(18 * d.size());
  const int n_work = BlasInt(work.size()), n_iwork = BlasInt(iwork.size());
  dstemr_("V", "I", &n, d.data(), e.data(), &unused, &unused, &first, &last, &found, values.data(), vectors.Row(0), &n,
          &n_vectors, support.data(), &try_accuracy, work.data(), &n_work, iwork.data(), &n_iwork, &info, 1, 1);
  return info == 0 && found == n_vectors;
}

Status DividedVectors(const Tridiagonal& t, const EigenRange& range, Mat<double>& vectors) {
  const size_t size = t.d.size();
  std::vector<double> d = t.d, e = t.e, work(size * size + 4 * size + 1);
  std::vector<int> iwork(5 * size + 3);
  Mat<double> all(size, size);
  const int n = BlasInt(size), n_work = BlasInt(work.size()), n_iwork = BlasInt(iwork.size());
  int info = 0;
  dstedc_("I", &n, d.data(), e.data(), all.Row(0), &n, work.data(), &n_work, iwork.data(), &n_iwork, &info, 1);
  DF_RETURN_IF_ERROR(FromInfo("stedc", info));
  for (size_t i = 0; i < vectors.rows(); ++i) std::copy_n(all.Row(range.first + i), size, vectors.Row(i));
  return Status::Ok();
}

// Vectors of T to those of A: each Q v.
Status TurnBack(ThreadPool& pool, const Tridiagonal& t, Mat<double>& vectors) {
  const size_t size = t.d.size(), n_tiles = (vectors.rows() + kTurnedRows - 1) / kTurnedRows;
  const size_t grain = size < kBlockedSize ? n_tiles : std::max<size_t>((n_tiles + kMaxCallers - 1) / kMaxCallers, 1);
  std::vector<int> infos(n_tiles);
  pool.ParallelFor(n_tiles, grain, [&](size_t begin, size_t end, size_t) {
    // The largest block that LAPACK takes is 64 columns of reflectors, with a factor of 65 x 64 beside it.
    std::vector<double> work(kTurnedRows * 64 + 65 * 64);
    for (size_t tile = begin; tile < end; ++tile) {
      const size_t first = tile * kTurnedRows;
      const int n = BlasInt(size), n_columns = BlasInt(std::min(kTurnedRows, vectors.rows() - first));
      const int n_work = BlasInt(work.size());
      dormtr_("L", "L", "N", &n, &n_columns, t.reflectors.view().Row(0), &n, t.tau.data(), vectors.Row(first), &n,
              work.data(), &n_work, &infos[tile], 1, 1, 1);
    }
  });
  for (const int info : infos) DF_RETURN_IF_ERROR(FromInfo("ormtr", info));
  return Status::Ok();
}

}  // namespace

Result<PartialEigen> EigenOfSymmetric(ThreadPool& pool, Mat<double> a,
                                      const std::function<EigenRange(std::span<const double> values)>& choose) {
  DF_CHECK(a.rows() == a.cols());
  const size_t size = a.rows();
  if (size == 0 || size > kMaxPartialEigen) {
    return Unsupported("eigenvalues of a matrix of " + std::to_string(size) + " rows: from 1 to " +
                       std::to_string(kMaxPartialEigen) + " can be done");
  }
  for (size_t row = 0; row < size; ++row) {
    for (size_t col = row; col < size; ++col) {
      if (std::isfinite(a.Row(row)[col])) continue;
      return InvalidArgument("eigenvalues of a matrix that is not finite at row " + std::to_string(row) + ", column " +
                             std::to_string(col));
    }
  }
  HoldBlasToOneThread();
  DF_ASSIGN_OR_RETURN(const Tridiagonal t, Tridiagonalise(std::move(a)));
  PartialEigen eigen{.values = Buffer<double>(size), .range = {}, .vectors = {}};
  std::vector<double> beside = t.e;
  std::copy(t.d.begin(), t.d.end(), eigen.values.data());
  const int n = BlasInt(size);
  int info = 0;
  dsterf_(&n, eigen.values.data(), beside.data(), &info);
  DF_RETURN_IF_ERROR(FromInfo("sterf", info));
  eigen.range = choose(eigen.values.span());
  DF_CHECK(eigen.range.first <= eigen.range.end && eigen.range.end <= size);
  const size_t n_vectors = eigen.range.end - eigen.range.first;
  if (n_vectors == 0) return eigen;
  eigen.vectors = Mat<double>(n_vectors, size);
  if (!TryRobustVectors(t, eigen.range, eigen.vectors)) {
    DF_RETURN_IF_ERROR(DividedVectors(t, eigen.range, eigen.vectors));
  }
  DF_RETURN_IF_ERROR(TurnBack(pool, t, eigen.vectors));
  return eigen;
}

}  // namespace df::linalg
